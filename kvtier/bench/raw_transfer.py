"""Direct reads and writes at a fixed depth: through a ring where there is one, else by threads.

A transfer is used from one thread; the threads that it starts end before its calls return.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from kvtier.liburing import Ring

_GB = 1e9
_HUGE_PAGE_BYTES = 2 << 20


@dataclass(frozen=True, kw_only=True)
class RawRate:
    """Bytes that were really moved, in how long."""

    num_bytes: int
    seconds: float

    @property
    def gb_per_s(self) -> float:
        return self.num_bytes / self.seconds / _GB if self.seconds > 0 else 0.0


class RawTransfer(ABC):
    """Moves ops of one size between files and buffers of its own, `depth` at once."""

    name: str

    def __init__(self, *, depth: int, op_bytes: int, num_buffers: int) -> None:
        self.depth = depth
        self.op_bytes = op_bytes
        self.arena = _make_arena(num_buffers * op_bytes)
        self.buffers = [self.arena[i * op_bytes : (i + 1) * op_bytes] for i in range(num_buffers)]

    def run(
        self,
        fds: npt.NDArray[np.int32],
        offsets_bytes: npt.NDArray[np.uint64],
        *,
        is_write: bool = False,
        seconds_max: float = 3600.0,
    ) -> RawRate:
        """Runs the ops in order, until all are done or the deadline. Raises OSError.

        With at least as many buffers as ops the i-th op uses the i-th buffer.
        """
        if len(fds) == 0:
            return RawRate(num_bytes=0, seconds=0.0)
        return self._run(fds, offsets_bytes, is_write=is_write, seconds_max=seconds_max)

    @abstractmethod
    def _run(
        self,
        fds: npt.NDArray[np.int32],
        offsets_bytes: npt.NDArray[np.uint64],
        *,
        is_write: bool,
        seconds_max: float,
    ) -> RawRate: ...


class RingTransfer(RawTransfer):
    """io_uring with registered buffers where the memlock limit permits them."""

    name = "ring"

    def __init__(self, ring: Ring, *, depth: int, op_bytes: int, num_buffers: int) -> None:
        super().__init__(depth=depth, op_bytes=op_bytes, num_buffers=num_buffers)
        self._ring = ring
        try:
            ring.register_buffers(self.buffers)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            self.is_registered = False
        else:
            self.is_registered = True

    def _run(
        self,
        fds: npt.NDArray[np.int32],
        offsets_bytes: npt.NDArray[np.uint64],
        *,
        is_write: bool,
        seconds_max: float,
    ) -> RawRate:
        result = self._ring.run_batch(
            fds=fds,
            offsets_bytes=offsets_bytes,
            buffers=self.buffers,
            is_write=is_write,
            is_buffer_registered=self.is_registered,
            time_limit_s=seconds_max,
        )
        return RawRate(num_bytes=result.num_bytes, seconds=result.elapsed_ns / 1e9)


class ThreadsTransfer(RawTransfer):
    """preadv and pwritev by `depth` Python threads: for large ops as fast, for small ones not."""

    name = "threads"

    def _run(
        self,
        fds: npt.NDArray[np.int32],
        offsets_bytes: npt.NDArray[np.uint64],
        *,
        is_write: bool,
        seconds_max: float,
    ) -> RawRate:
        transfer = os.pwritev if is_write else os.preadv
        has_one_each = len(self.buffers) >= len(fds)
        positions = itertools.count()  # Shared by the threads: each op is taken once.
        num_threads = min(self.depth, len(self.buffers), len(fds))
        num_done = [0] * num_threads
        errors: list[OSError] = []
        started_s = time.perf_counter()
        deadline_s = started_s + seconds_max

        def work(thread_index: int) -> None:
            try:
                for position in positions:
                    if position >= len(fds) or time.perf_counter() > deadline_s or errors:
                        return
                    buffer = self.buffers[position if has_one_each else thread_index]
                    offset_bytes = int(offsets_bytes[position])
                    moved_bytes = transfer(int(fds[position]), [buffer], offset_bytes)
                    if moved_bytes != self.op_bytes:
                        raise OSError(errno.EIO, f"short transfer of {moved_bytes} bytes")
                    num_done[thread_index] += 1
            except OSError as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        seconds = time.perf_counter() - started_s
        return RawRate(num_bytes=sum(num_done) * self.op_bytes, seconds=seconds)


@contextmanager
def open_raw_transfer(
    *, depth: int, op_bytes: int, num_buffers: int | None = None, is_ring_wanted: bool = True
) -> Iterator[RawTransfer]:
    """Opens a transfer with `num_buffers` buffers (at least `depth`, the default)."""
    num_buffers = max(depth, num_buffers or 0)
    ring = _open_ring(depth) if is_ring_wanted else None
    if ring is None:
        yield ThreadsTransfer(depth=depth, op_bytes=op_bytes, num_buffers=num_buffers)
        return
    with ring:
        yield RingTransfer(ring, depth=depth, op_bytes=op_bytes, num_buffers=num_buffers)


@contextmanager
def open_raw_transfers(
    *, depth: int, op_bytes: int, num_buffers: int
) -> Iterator[tuple[RawTransfer, RawTransfer]]:
    """Two alike: one can read while what the other has read is worked on."""
    with (
        open_raw_transfer(depth=depth, op_bytes=op_bytes, num_buffers=num_buffers) as first,
        open_raw_transfer(depth=depth, op_bytes=op_bytes, num_buffers=num_buffers) as second,
    ):
        yield first, second


def _open_ring(depth: int) -> Ring | None:
    """None where it was not built, or where kernel or container refuse it."""
    try:
        from kvtier.liburing import Ring

        return Ring(depth)
    except (ImportError, OSError):
        return None


def _make_arena(num_bytes: int) -> memoryview:
    """One private mapping on huge pages, of bytes that no device can shrink.

    Like the store's own buffers, or the probe is no roof: a virtual disk read 1.3 GB/s into small
    pages and 3.8 GB/s into huge ones. Private, because shared mappings often get no huge pages.
    """
    arena_bytes = -(-num_bytes // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    mapping = mmap.mmap(-1, arena_bytes + _HUGE_PAGE_BYTES, flags=flags)
    with suppress(OSError):  # A kernel without huge pages: it has no faster buffers either.
        mapping.madvise(mmap.MADV_HUGEPAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    arena = memoryview(mapping)[-address % _HUGE_PAGE_BYTES :][:arena_bytes]
    piece = random.Random(num_bytes).randbytes(1 << 20)
    for offset_bytes in range(0, arena_bytes, len(piece)):
        arena[offset_bytes : offset_bytes + len(piece)] = piece
    return arena[:num_bytes]
