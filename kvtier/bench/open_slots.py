"""The slots of a store's files, open for others than the store. Thread-safe, stateless."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvtier.bench.block_source import BenchmarkError
from kvtier.bench.payload import U8
from kvtier.bench.segment_slots import read_segment_slots


@dataclass(frozen=True, kw_only=True)
class OpenSlots:
    """Where blocks lie, in the order of the files, with open descriptors."""

    fds: npt.NDArray[np.int32]
    offsets_bytes: npt.NDArray[np.uint64]
    is_direct: bool


@contextmanager
def open_slots(folder: Path, keys: U8, slot_bytes: int) -> Iterator[OpenSlots]:
    """Opens the segments that hold `keys`. Raises BenchmarkError unless all are on disk."""
    wanted = {key.tobytes() for key in keys}
    all_fds, all_offsets = [], []
    is_direct = True
    with ExitStack() as stack:
        for segment in read_segment_slots(folder):
            is_ours = np.array([key.tobytes() in wanted for key in segment.keys], dtype=bool)
            if not is_ours.any():
                continue
            if segment.slot_bytes != slot_bytes:
                raise BenchmarkError(f"{segment.path.name} has slots of another size")
            try:
                fd = os.open(segment.path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            except OSError:
                is_direct = False
                fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            offsets = segment.offsets_bytes[is_ours]
            all_offsets.append(offsets)
            all_fds.append(np.full(len(offsets), fd, dtype=np.int32))
        fds = np.concatenate(all_fds) if all_fds else np.zeros(0, dtype=np.int32)
        if len(fds) != len(wanted):
            raise BenchmarkError(f"{len(fds)} of {len(wanted)} blocks are on disk")
        yield OpenSlots(fds=fds, offsets_bytes=np.concatenate(all_offsets), is_direct=is_direct)


def find_slot_bytes(folder: Path) -> int:
    """The one slot size of the folder's segments. Raises BenchmarkError unless there is one."""
    sizes = {segment.slot_bytes for segment in read_segment_slots(folder) if len(segment.keys)}
    if len(sizes) != 1:
        raise BenchmarkError(f"expected slots of one size on disk, found {sorted(sizes)}")
    return sizes.pop()
