"""The rate of the bare device: direct reads and writes of one file by several threads.

A probe is used from one thread; it starts its own and ends them before it returns.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kvtier.file_system import find_file_system

ALIGNMENT_BYTES = 4096
DEPTH = 8
_GB = 1e9
_OP_BYTES_MAX = 1 << 30
_HUGE_PAGE_BYTES = 2 << 20
_LOG_FILE_BYTES_MAX = 512 << 20
_LOG_PASS_S_MAX = 2.0
# No single rotating disk reads faster; virtual disks often call themselves rotating.
_ROTATING_GB_PER_S_MAX = 0.4


@dataclass(frozen=True, kw_only=True)
class RawRate:
    """Bytes that were really moved, in how long."""

    num_bytes: int
    seconds: float

    @property
    def gb_per_s(self) -> float:
        return self.num_bytes / self.seconds / _GB if self.seconds > 0 else 0.0


class RawProbe:
    """A nameless file in a folder, written and read past the page cache where that is possible."""

    def __init__(self, fd: int, *, file_bytes: int, op_bytes: int, is_direct: bool) -> None:
        self._fd = fd
        self._op_bytes = op_bytes
        self._num_ops = max(1, file_bytes // op_bytes)
        self._num_written = 0
        self._first_op = 0
        self._buffers = _make_buffers(min(DEPTH, self._num_ops), op_bytes)
        self.is_direct = is_direct

    @property
    def op_bytes(self) -> int:
        return self._op_bytes

    def write(self, *, seconds_max: float = 10.0) -> RawRate:
        """Writes the file from its start until its end or the deadline, and makes it durable.

        A first pass allocates too, like a store that grows; later passes write in place.
        """
        rate = self._run(os.pwritev, range(self._num_ops), seconds_max, is_synced=True)
        self._num_written = max(self._num_written, rate.num_bytes // self._op_bytes)
        return rate

    def read(self, *, seconds_max: float = 10.0) -> RawRate:
        """Reads what was written, once or until the deadline, on from where the last read ended."""
        if self._num_written == 0:
            raise ValueError("nothing was written yet")
        # A deadline in the middle must not mean that only the start is ever read.
        order = [(self._first_op + i) % self._num_written for i in range(self._num_written)]
        rate = self._run(os.preadv, order, seconds_max, is_synced=False)
        self._first_op = (self._first_op + rate.num_bytes // self._op_bytes) % self._num_written
        return rate

    def _run(
        self,
        transfer: Callable[[int, list[memoryview], int], int],
        order: range | list[int],
        seconds_max: float,
        *,
        is_synced: bool,
    ) -> RawRate:
        positions = itertools.count()  # Shared by the threads: each op is taken once.
        num_done = [0] * len(self._buffers)
        errors: list[OSError] = []
        started_s = time.perf_counter()
        deadline_s = started_s + seconds_max

        def work(thread_index: int) -> None:
            buffer = self._buffers[thread_index]
            try:
                for position in positions:
                    if position >= len(order) or time.perf_counter() > deadline_s or errors:
                        return
                    offset_bytes = order[position] * self._op_bytes
                    moved_bytes = transfer(self._fd, [buffer], offset_bytes)
                    if moved_bytes != self._op_bytes:
                        raise OSError(errno.EIO, f"short transfer of {moved_bytes} bytes")
                    num_done[thread_index] += 1
            except OSError as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(self._buffers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        if is_synced:
            os.fdatasync(self._fd)
        seconds = time.perf_counter() - started_s
        return RawRate(num_bytes=sum(num_done) * self._op_bytes, seconds=seconds)


class RawRateLog:
    """Rates of a device measured now and then in one run, on one file."""

    def __init__(self, probe: RawProbe) -> None:
        self._probe = probe
        self.reads: list[RawRate] = []
        self.writes: list[RawRate] = []

    @classmethod
    @contextmanager
    def open(cls, folder: str | Path, *, block_bytes: int) -> Iterator[RawRateLog]:
        """Makes the file, at most half a gibibyte and a quarter of the free space."""
        status = os.statvfs(folder)
        file_bytes = min(_LOG_FILE_BYTES_MAX, status.f_bavail * status.f_frsize // 4)
        with raw_probe(folder, file_bytes=file_bytes, block_bytes=block_bytes) as probe:
            # The first pass allocates the file, which is not the device's rate.
            probe.write(seconds_max=_LOG_PASS_S_MAX)
            yield cls(probe)

    def measure(self) -> None:
        """Adds one rate of each kind; raises OSError."""
        self.writes.append(self._probe.write(seconds_max=_LOG_PASS_S_MAX))
        self.reads.append(self._probe.read(seconds_max=_LOG_PASS_S_MAX))


@contextmanager
def raw_probe(folder: str | Path, *, file_bytes: int, block_bytes: int) -> Iterator[RawProbe]:
    """Opens a probe in `folder`; its file has no name from the start, so nothing can be left over.

    Ops have the block's size, rounded up to what direct I/O takes. Raises OSError.
    """
    # At most 1 GiB an op: longer transfers end short.
    aligned_bytes = -(-block_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    op_bytes = min(aligned_bytes, _OP_BYTES_MAX)
    plain_fd, name = tempfile.mkstemp(prefix="raw-probe-", dir=folder)
    direct_fd = -1
    try:
        try:
            direct_fd = _open_direct(name)
        finally:
            os.unlink(name)
        fd = direct_fd if direct_fd >= 0 else plain_fd
        yield RawProbe(fd, file_bytes=file_bytes, op_bytes=op_bytes, is_direct=direct_fd >= 0)
    finally:
        os.close(plain_fd)
        if direct_fd >= 0:
            os.close(direct_fd)


def detect_medium(folder: str | Path, *, read_gb_per_s: float | None = None) -> str:
    """Names the medium below a folder: "ssd", "hdd", "memory", "network" or "unknown".

    read_gb_per_s: a measured direct read rate. It decides what the kernel can't say of a virtual
    disk, and overrules "rotating" of what is too fast for it.
    """
    medium = find_file_system(folder).medium
    is_disk = medium == "hdd" or (medium == "unknown" and os.major(os.stat(folder).st_dev) != 0)
    is_fast = read_gb_per_s is not None and read_gb_per_s > _ROTATING_GB_PER_S_MAX
    return "ssd" if is_disk and is_fast else medium


def _open_direct(name: str) -> int:
    """A descriptor that passes by the page cache, or -1 where the file system has none."""
    try:
        return os.open(name, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return -1
        raise


def _make_buffers(num_buffers: int, op_bytes: int) -> list[memoryview]:
    """Page-aligned pieces of one private mapping on huge pages, of bytes that no device can shrink.

    Like the store's own buffers, or the probe is no roof: a virtual disk read 1.3 GB/s into small
    pages and 3.8 GB/s into huge ones. Private, because shared mappings often get no huge pages.
    """
    arena_bytes = -(-num_buffers * op_bytes // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    mapping = mmap.mmap(-1, arena_bytes + _HUGE_PAGE_BYTES, flags=flags)
    with suppress(OSError):  # A kernel without huge pages: it has no faster buffers either.
        mapping.madvise(mmap.MADV_HUGEPAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    arena = memoryview(mapping)[-address % _HUGE_PAGE_BYTES :][:arena_bytes]
    piece = random.Random(op_bytes).randbytes(1 << 20)
    for offset_bytes in range(0, arena_bytes, len(piece)):
        arena[offset_bytes : offset_bytes + len(piece)] = piece
    return [arena[i * op_bytes : (i + 1) * op_bytes] for i in range(num_buffers)]
