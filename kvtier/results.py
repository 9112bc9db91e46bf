"""What the calls of a namespace and a store return. Frozen values; thread-safe."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvtier.outcome import Outcome

U8: TypeAlias = npt.NDArray[np.uint8]
U64: TypeAlias = npt.NDArray[np.uint64]
I64: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class Lookup:
    """Which blocks can be had now, and where they lie. Not frozen: that would double its cost."""

    num_blocks: int
    """Length of the unbroken prefix, or with prefix=False all that are there."""
    tiers: U8
    """uint8[n]: 0 none, 1 host, 2 disk, 3 remote."""

    @property
    def mask(self) -> Mask:
        """Returns bool[n]: the blocks that were found, of the prefix only with prefix=True."""
        mask: Mask = self.tiers != 0
        return mask


@dataclass(frozen=True, slots=True, eq=False)
class PutResult:
    """What became of the blocks that were offered."""

    num_accepted: int
    """Length of the leading run of DONE."""
    outcomes: list[Outcome]


@dataclass(frozen=True, slots=True, eq=False)
class GetResult:
    """Which blocks of `out` hold their bytes now."""

    num_blocks: int
    """Length of the unbroken prefix, or with prefix=False all that were delivered."""
    mask: Mask
    """bool[n]."""
    outcomes: list[Outcome]


@dataclass(frozen=True, slots=True, eq=False)
class LoadResult:
    """Which rows of an engine's tensors hold their blocks now."""

    num_blocks: int
    """Length of the unbroken prefix, or with prefix=False all that were loaded."""
    mask: Mask
    """bool[n]."""
    outcomes: list[Outcome]
    undefined_block_ids: I64
    """int64[k]: rows that were written to and hold nothing to rely on. Other rows whose block is
    not DONE are as they were."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedLoadResult:
    """Which blocks every rank has in its rows now."""

    num_blocks: int
    """Length of the unbroken prefix, or with prefix=False all that were loaded."""
    mask: Mask
    """bool[n]."""
    outcomes: list[Outcome]
    undefined_indices: I64
    """int64[k]: positions in the keys whose rows, on some rank, were written to and hold nothing
    to rely on. Rows of other blocks that are not DONE are as they were."""


@dataclass(frozen=True, slots=True)
class FlushResult:
    """What survives a crash from here on."""

    durable_blocks: int
    not_kept_blocks: int
