"""BareLoops: two plain loops that do a store's work without a store, one moving bytes between disk
and memory, one copying and hashing beside it: what the processors and the memory here let them.

Used from one thread; has a second one, which ends before a call returns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from kvtier import _core
from kvtier.bench.open_slots import OpenSlots
from kvtier.bench.payload import U8
from kvtier.bench.raw_transfer import RawRate, RawTransfer
from kvtier.bench.timed_bytes import TimedBytes, timed


class BareLoops:
    """Works through groups of as many ops as a transfer has buffers, one transfer each in turn."""

    def __init__(self, transfers: tuple[RawTransfer, RawTransfer]) -> None:
        self._transfers = transfers
        self._arenas = [np.frombuffer(it.arena, dtype=np.uint8) for it in transfers]
        self._num_buffers = len(transfers[0].buffers)
        self._op_bytes = transfers[0].op_bytes

    def get(self, slots: OpenSlots) -> TimedBytes:
        """Reads all slots; hashes each group and copies it out while the next one is read."""
        # Page faults are no part of a delivery.
        target = np.full(self._num_buffers * self._op_bytes, 0xA5, dtype=np.uint8)

        def deliver(turn: int, num_bytes: int) -> None:
            self._copy_and_hash(self._arenas[turn % 2][:num_bytes], target[:num_bytes])

        def run() -> RawRate:
            num_bytes, started_s = 0, time.perf_counter()
            delivered: Future[None] | None = None
            for turn, part in enumerate(self._groups(len(slots.fds))):
                transfer = self._transfers[turn % 2]
                moved = transfer.run(slots.fds[part], slots.offsets_bytes[part]).num_bytes
                if delivered:
                    delivered.result()
                delivered = pool.submit(deliver, turn, moved)
                num_bytes += moved
            if delivered:
                delivered.result()
            return RawRate(num_bytes=num_bytes, seconds=time.perf_counter() - started_s)

        with ThreadPoolExecutor(1) as pool:
            return timed(run)

    def put(self, data: U8, fd: int) -> TimedBytes:
        """Writes `data` (one op a block) to a file; copies in and hashes each group while the one
        before it is written.
        """
        source = data.reshape(-1)
        num_ops = len(source) // self._op_bytes
        offsets = np.arange(num_ops, dtype=np.uint64) * np.uint64(self._op_bytes)
        fds: npt.NDArray[np.int32] = np.full(num_ops, fd, dtype=np.int32)
        parts = list(self._groups(num_ops))

        def fill(turn: int) -> None:
            part = parts[turn]
            taken = source[part.start * self._op_bytes : part.stop * self._op_bytes]
            self._copy_and_hash(taken, self._arenas[turn % 2][: len(taken)])

        def run() -> RawRate:
            num_bytes, started_s = 0, time.perf_counter()
            filled = pool.submit(fill, 0)
            for turn, part in enumerate(parts):
                filled.result()
                if turn + 1 < len(parts):
                    filled = pool.submit(fill, turn + 1)
                transfer = self._transfers[turn % 2]
                num_bytes += transfer.run(fds[part], offsets[part], is_write=True).num_bytes
            os.fdatasync(fd)
            return RawRate(num_bytes=num_bytes, seconds=time.perf_counter() - started_s)

        with ThreadPoolExecutor(1) as pool:
            return timed(run)

    def _groups(self, num_ops: int) -> Iterator[slice]:
        for first in range(0, num_ops, self._num_buffers):
            yield slice(first, min(first + self._num_buffers, num_ops))

    def _copy_and_hash(self, source: U8, target: U8) -> None:
        _core.checksum_and_copy(source, target, self._op_bytes)
