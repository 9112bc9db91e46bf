"""What a rank has, and what it needs to move it. A rank is a worker in a process of its own.

Plain values that can be pickled; nothing of vLLM is imported.
"""

from dataclasses import dataclass

from kvtier.arena_view import ArenaHandle
from kvtier.transfer_settings import TransferSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """What a rank has of each block of one group."""

    block_bytes: int
    block_tokens: int
    num_hashes: int
    """Hashes that the engine makes for each block."""
    layout: str
    """How its bytes lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShape:
    """What a rank has of each block, in the order of the groups."""

    rank: int
    groups: tuple[GroupShape, ...]
    num_device_blocks: int
    device: str
    """"cpu" or "cuda:N"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSetup:
    """Where a rank's parts of one group's blocks belong."""

    namespace_id: str
    part_bytes: tuple[int, ...]
    """Bytes of each part of a block; one part for all ranks when each has the same bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSetup:
    """What a rank needs to reach the store's host memory."""

    arena: ArenaHandle
    groups: tuple[GroupSetup, ...]
    is_loaded_whole: bool
    """Whether a request with one block not loaded has to begin anew."""
    transfer_settings: TransferSettings
    """As the store was told."""
