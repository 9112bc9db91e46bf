"""What became of one block of a call, and the tiers it may lie in. Constants; thread-safe."""

import enum


class Outcome(enum.IntEnum):
    """One block's result. The values are those of the core."""

    DONE = 0
    """Stored, or delivered."""
    MISS = 1
    """Not stored, or not reachable now."""
    DECLINED = 2
    """Not taken: no slot, or its parent is not there. May be offered again."""
    CORRUPT = 3
    """The stored bytes failed their checksum; the entry is gone."""
    TIMEOUT = 4
    """The deadline came first; nothing was removed."""
    CANCELLED = 5
    """The caller or close() ended it; nothing was removed."""
    FAILED = 6
    """The medium failed after retries; the entry is gone."""


class Tier(enum.IntEnum):
    """Values of `Lookup.tiers`."""

    NONE = 0
    HOST = 1
    DISK = 2
    REMOTE = 3
