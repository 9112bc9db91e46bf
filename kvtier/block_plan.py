"""BlockPlan and PlanResult: what a store asks of worker processes, and what each answers.

Plain values that can be pickled; thread-safe as such.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvtier.results import I64, U8, U64

DONE, CORRUPT, FAILED = "done", "corrupt", "failed"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockPlan:
    """Some blocks of a planned save or load, to be moved by ranks 0 to num_ranks - 1.

    Each rank moves the parts of the blocks that it has. Made by PlannedJob.take_plans().
    """

    plan_id: int
    """Never used twice by a store."""
    arena_id: bytes
    """Of the store's arena; another after each opening."""
    generation: int
    """How often a rank had been abandoned when the plan was made."""
    is_load: bool
    num_ranks: int
    namespace_id: bytes
    part_bytes: tuple[int, ...]
    """Of all parts of a block, as Namespace.part_bytes."""
    block_indices: I64
    """int64[num_blocks]: positions in the call's keys."""
    slot_offsets: U64
    """uint64[num_blocks]: where in the store's arenas each block begins, in bytes."""
    keys: U8
    """uint8[num_blocks, 16]; empty: no checksums."""
    checksums: U64
    """Loads with checksums: uint64[num_blocks * num_parts]."""

    @property
    def num_blocks(self) -> int:
        return len(self.block_indices)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanResult:
    """What one rank made of a plan. Made by WorkerJob; goes to BlockStore.finish_plan()."""

    plan_id: int
    arena_id: bytes
    rank: int
    status: str
    """"done"; "corrupt": some of a load is not what was saved; "failed"."""
    message: str = ""
    first_part: int = 0
    num_parts: int = 0
    checksums: U64 = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    """Saves with checksums that are done: uint64[num_blocks * num_parts]."""
    undefined_indices: I64 = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Loads: positions in the call's keys whose rows on that rank hold nothing to rely on."""

    @classmethod
    def failed(cls, plan: BlockPlan, rank: int, message: str) -> PlanResult:
        """Returns the answer of a rank that did not begin with the plan.

        Say for a wrong row, or because the plan was never sent to it.
        """
        return cls(
            plan_id=plan.plan_id,
            arena_id=plan.arena_id,
            rank=rank,
            status=FAILED,
            message=message,
        )
