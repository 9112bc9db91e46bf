"""The rate of the bare device: direct reads and writes of one file, several at once.

A probe is used from one thread.
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvtier.bench.raw_transfer import RawRate, RawTransfer, open_raw_transfer
from kvtier.file_system import find_file_system

ALIGNMENT_BYTES = 4096
DEPTH = 8
_OP_BYTES_MAX = 1 << 30
_LOG_FILE_BYTES_MAX = 512 << 20
_LOG_PASS_S_MAX = 2.0
# No single rotating disk reads faster; virtual disks often call themselves rotating.
_ROTATING_GB_PER_S_MAX = 0.4


class RawProbe:
    """A nameless file in a folder, written and read past the page cache where that is possible."""

    def __init__(self, fd: int, transfer: RawTransfer, *, file_bytes: int, is_direct: bool) -> None:
        self._fd = fd
        self._transfer = transfer
        self._num_ops = max(1, file_bytes // transfer.op_bytes)
        self._num_written = 0
        self._first_op = 0
        self.is_direct = is_direct

    @property
    def op_bytes(self) -> int:
        return self._transfer.op_bytes

    def write(self, *, seconds_max: float = 10.0) -> RawRate:
        """Writes the file from its start until its end or the deadline, and makes it durable.

        A first pass allocates too, like a store that grows; later passes write in place.
        """
        started_s = time.perf_counter()
        moved = self._run(np.arange(self._num_ops), seconds_max, is_write=True)
        os.fdatasync(self._fd)
        rate = RawRate(num_bytes=moved.num_bytes, seconds=time.perf_counter() - started_s)
        self._num_written = max(self._num_written, rate.num_bytes // self.op_bytes)
        return rate

    def read(self, *, seconds_max: float = 10.0) -> RawRate:
        """Reads what was written, once or until the deadline, on from where the last read ended."""
        if self._num_written == 0:
            raise ValueError("nothing was written yet")
        # A deadline in the middle must not mean that only the start is ever read.
        order = (self._first_op + np.arange(self._num_written)) % self._num_written
        rate = self._run(order, seconds_max, is_write=False)
        self._first_op = (self._first_op + rate.num_bytes // self.op_bytes) % self._num_written
        return rate

    def _run(self, order: npt.NDArray[np.int64], seconds_max: float, *, is_write: bool) -> RawRate:
        fds = np.full(len(order), self._fd, dtype=np.int32)
        offsets = order.astype(np.uint64) * np.uint64(self.op_bytes)
        return self._transfer.run(fds, offsets, is_write=is_write, seconds_max=seconds_max)


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
def raw_probe(
    folder: str | Path, *, file_bytes: int, block_bytes: int, is_ring_wanted: bool = True
) -> Iterator[RawProbe]:
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
        depth = min(DEPTH, max(1, file_bytes // op_bytes))
        with open_raw_transfer(
            depth=depth, op_bytes=op_bytes, is_ring_wanted=is_ring_wanted
        ) as transfer:
            yield RawProbe(fd, transfer, file_bytes=file_bytes, is_direct=direct_fd >= 0)
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
