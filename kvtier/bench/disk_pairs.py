"""Store and bare device in turns: gets against reads of the very same slots, puts against writes
to files in the same state. One thread of its own.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvtier import _core
from kvtier.bench.bare_loops import BareLoops
from kvtier.bench.block_source import BenchmarkError, BlockSource
from kvtier.bench.open_slots import OpenSlots, open_slots
from kvtier.bench.raw_transfer import RawRate, RawTransfer
from kvtier.bench.replay import tier_counters
from kvtier.bench.timed_bytes import Pairs, TimedBytes, timed

if TYPE_CHECKING:
    from kvtier import BlockStore

_CALL_BYTES = 128 << 20
_FLUSH_S_MAX = 300.0


class DiskPairs:
    """One store with its blocks on disk, and two like transfers to reach the same files without it.

    After each pass all of `source`'s blocks are on disk again.
    """

    def __init__(
        self,
        store: BlockStore,
        folder: Path,
        source: BlockSource,
        transfers: tuple[RawTransfer, RawTransfer],
    ) -> None:
        self.store = store
        self.source = source
        self.gets = Pairs()
        self.verified_reads = Pairs()
        self.bare_gets = Pairs()
        self.fresh_puts = Pairs()
        self.overwriting_puts = Pairs()
        self.bare_puts = Pairs()
        self.wrong_bytes = 0
        self.is_direct = True
        self._folder = folder
        self._transfer = transfers[0]
        self._bare = BareLoops(transfers)
        call_blocks = max(1, _CALL_BYTES // source.block_bytes)
        self._out = np.zeros((min(call_blocks, source.num_blocks), source.block_bytes), np.uint8)

    # ---- The store's side ----------------------------------------------------------------------

    def get_all(self) -> TimedBytes:
        """Gets every block, a call at a time, and checks each byte outside of the time taken."""
        seconds, cpu_s, num_got = 0.0, 0.0, 0
        moved_before = self._counters()["bytes_read"]
        for first in range(0, self.source.num_blocks, len(self._out)):
            keys = self.source.keys[first : first + len(self._out)]
            out = self._out[: len(keys)]
            # Neither page faults nor what an earlier call left belong to the figure.
            out.fill(0xA5)
            cpu_started_s, started_s = time.process_time(), time.perf_counter()
            num_blocks = self.source.namespace.get(keys, out).num_blocks
            seconds += time.perf_counter() - started_s
            cpu_s += time.process_time() - cpu_started_s
            num_got += num_blocks
            self.wrong_bytes += self.source.check(first, out[:num_blocks])
        if num_got != self.source.num_blocks:
            raise BenchmarkError(f"got {num_got} of {self.source.num_blocks} blocks")
        return TimedBytes(
            num_bytes=self.source.num_bytes,
            seconds=seconds,
            cpu_s=cpu_s,
            moved_bytes=self._counters()["bytes_read"] - moved_before,
        )

    def put_fresh(self) -> TimedBytes:
        """Puts everything into an empty directory: segments are made on the way."""
        self.store.clear()
        return self._put()

    def put_over(self) -> TimedBytes:
        """Puts everything into the slots of deleted blocks, which were written before."""
        before = self._segment_inodes()
        self.source.namespace.delete(self.source.keys)
        timed = self._put()
        if self._segment_inodes() != before:
            raise BenchmarkError("the store made new segments where it had free slots")
        return timed

    def _put(self) -> TimedBytes:
        moved_before = self._counters()["bytes_written"]
        backlog_bytes_max = tier_counters(self.store)["host"]["bytes_capacity"] // 4
        cpu_started_s, started_s = time.process_time(), time.perf_counter()
        if backlog_bytes_max:
            self.source.put_all(self.store, backlog_bytes_max=backlog_bytes_max)
        else:
            # Each call ends when all of it is written, as a get's does when all of it is read.
            self.source.put_all(self.store, call_bytes=_CALL_BYTES)
        not_kept = self.store.flush(_FLUSH_S_MAX).not_kept_blocks
        seconds = time.perf_counter() - started_s
        cpu_s = time.process_time() - cpu_started_s
        if not_kept:
            raise BenchmarkError(f"disk did not keep {not_kept} blocks")
        return TimedBytes(
            num_bytes=self.source.num_bytes,
            seconds=seconds,
            cpu_s=cpu_s,
            moved_bytes=self._counters()["bytes_written"] - moved_before,
        )

    # ---- The bare device's side ----------------------------------------------------------------

    def read_raw(self) -> TimedBytes:
        """Reads the slots of the same blocks from the store's own files."""
        with self._open_slots() as slots:
            return timed(lambda: self._transfer.run(slots.fds, slots.offsets_bytes))

    def read_verified(self) -> TimedBytes:
        """The same, then hashes and copies each block once: the CPU that a verified get needs."""
        op_bytes = self._transfer.op_bytes
        # Page faults are no part of a delivery, as in get_all.
        target = np.full(len(self._transfer.buffers) * op_bytes, 0xA5, dtype=np.uint8)
        source = np.frombuffer(self._transfer.arena, dtype=np.uint8)
        with self._open_slots() as slots:

            def run() -> RawRate:
                num_bytes, started_s = 0, time.perf_counter()
                for first in range(0, len(slots.fds), len(self._transfer.buffers)):
                    part = slice(first, first + len(self._transfer.buffers))
                    moved = self._transfer.run(slots.fds[part], slots.offsets_bytes[part]).num_bytes
                    _core.checksum_and_copy(source[:moved], target[:moved], op_bytes)
                    num_bytes += moved
                return RawRate(num_bytes=num_bytes, seconds=time.perf_counter() - started_s)

            return timed(run)

    def get_bare(self) -> TimedBytes:
        """Reads, and hashes and copies what was read beside it, without any store."""
        with self._open_slots() as slots:
            return self._bare.get(slots)

    def put_bare(self, fd: int) -> TimedBytes:
        """Copies and hashes, and writes what was copied beside it, over what was written before."""
        return self._bare.put(self.source.data, fd)

    def write_raw(self, fd: int, *, is_fresh: bool) -> TimedBytes:
        """Writes as much to a file like the store's: newly reserved, or written before."""
        op_bytes = self._transfer.op_bytes
        num_ops = self.source.num_blocks
        fds = np.full(num_ops, fd, dtype=np.int32)
        offsets = np.arange(num_ops, dtype=np.uint64) * np.uint64(op_bytes)
        if is_fresh:
            os.ftruncate(fd, 0)

        def run() -> RawRate:
            started_s = time.perf_counter()
            if is_fresh:
                os.posix_fallocate(fd, 0, num_ops * op_bytes)
            moved = self._transfer.run(fds, offsets, is_write=True)
            os.fdatasync(fd)
            return RawRate(num_bytes=moved.num_bytes, seconds=time.perf_counter() - started_s)

        return timed(run)

    # ---- What both need ------------------------------------------------------------------------

    def run_pair(self, pair_index: int, written_fd: int, fresh_fd: int) -> None:
        """Adds one pair of each kind; who goes first changes from pair to pair."""
        is_raw_first = pair_index % 2 == 1
        self.gets.add(*_in_turn(self.get_all, self.read_raw, is_raw_first))
        self.verified_reads.add(self.gets.store[-1], self.read_verified())
        self.bare_gets.add(self.gets.store[-1], self.get_bare())
        bare_put = self.put_bare(written_fd) if is_raw_first else None
        self.overwriting_puts.add(
            *_in_turn(
                self.put_over, lambda: self.write_raw(written_fd, is_fresh=False), is_raw_first
            )
        )
        bare_put = bare_put or self.put_bare(written_fd)
        self.bare_puts.add(self.overwriting_puts.store[-1], bare_put)
        self.fresh_puts.add(
            *_in_turn(self.put_fresh, lambda: self.write_raw(fresh_fd, is_fresh=True), is_raw_first)
        )

    @contextmanager
    def open_raw_files(self) -> Iterator[tuple[int, int]]:
        """Two nameless files: one written before, one to be made anew each time."""
        with ExitStack() as stack:
            written_fd = stack.enter_context(nameless_file(self._folder))
            fresh_fd = stack.enter_context(nameless_file(self._folder))
            self.write_raw(written_fd, is_fresh=True)
            yield written_fd, fresh_fd

    @contextmanager
    def _open_slots(self) -> Iterator[OpenSlots]:
        with open_slots(self._folder, self.source.keys, self._transfer.op_bytes) as slots:
            self.is_direct = self.is_direct and slots.is_direct
            yield slots

    def _segment_inodes(self) -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in self._folder.glob("segment-*.kvtier")}

    def _counters(self) -> dict[str, int]:
        return tier_counters(self.store)["disk"]


def _in_turn(
    store: Callable[[], TimedBytes], raw: Callable[[], TimedBytes], is_raw_first: bool
) -> tuple[TimedBytes, TimedBytes]:
    if is_raw_first:
        by_raw = raw()
        return store(), by_raw
    return store(), raw()


@contextmanager
def nameless_file(folder: Path) -> Iterator[int]:
    """Opens a file past the page cache, where that can be, that goes with its descriptor."""
    plain_fd, name = tempfile.mkstemp(prefix="raw-probe-", dir=folder)
    direct_fd = -1
    try:
        # A file system without direct I/O: the store goes through the page cache there too.
        with suppress(OSError):
            direct_fd = os.open(name, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
        os.unlink(name)
        yield direct_fd if direct_fd >= 0 else plain_fd
    finally:
        os.close(plain_fd)
        if direct_fd >= 0:
            os.close(direct_fd)
