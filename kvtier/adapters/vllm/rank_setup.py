"""What a rank has, and what it needs to move it. A rank is a worker in a process of its own.

Plain values that can be pickled; nothing of vLLM is imported.
"""

from dataclasses import dataclass

from kvtier.arena_view import ArenaHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShape:
    """What a rank has of each block."""

    rank: int
    block_bytes: int
    block_tokens: int
    num_device_blocks: int
    layout: str
    """How its bytes lie."""
    device: str
    """"cpu" or "cuda:N"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSetup:
    """What a rank needs to reach the store's host memory."""

    arena: ArenaHandle
    namespace_id: str
    part_bytes: tuple[int, ...]
    """Bytes of each part of a block; one part for all ranks when each has the same bytes."""
