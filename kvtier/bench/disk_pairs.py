"""Store and bare device in turns: gets against reads of the very same slots, puts against writes
to files in the same state. One thread of its own.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvtier import _core
from kvtier.bench.block_source import BenchmarkError, BlockSource
from kvtier.bench.payload import U8
from kvtier.bench.raw_transfer import RawRate, RawTransfer
from kvtier.bench.replay import tier_counters
from kvtier.bench.segment_slots import read_segment_slots

if TYPE_CHECKING:
    from kvtier import BlockStore

_GET_CALL_BYTES = 128 << 20
_FLUSH_S_MAX = 300.0
_GB = 1e9


@dataclass(frozen=True, kw_only=True)
class TimedBytes:
    """Bytes and what moving them took: wall time to completion, CPU of all threads."""

    num_bytes: int
    seconds: float
    cpu_s: float = 0.0
    moved_bytes: int = 0
    """By the store's own counters of its disk tier, padding and tables included."""

    @property
    def gb_per_s(self) -> float:
        return self.num_bytes / self.seconds / _GB if self.seconds > 0 else 0.0

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cpu_s / (self.num_bytes / _GB) if self.num_bytes else 0.0


@dataclass(kw_only=True)
class Pairs:
    """Measurements of the store and of the bare device, one of each a pair."""

    store: list[TimedBytes] = field(default_factory=list)
    raw: list[TimedBytes] = field(default_factory=list)

    def add(self, store: TimedBytes, raw: TimedBytes) -> None:
        self.store.append(store)
        self.raw.append(raw)

    @property
    def ratios(self) -> list[float]:
        return ratios_of([it.gb_per_s for it in self.store], [it.gb_per_s for it in self.raw])

    @property
    def cpu_ratios(self) -> list[float]:
        return ratios_of(
            [it.cpu_s_per_gb for it in self.store], [it.cpu_s_per_gb for it in self.raw]
        )


def ratios_of(values: Sequence[float], references: Sequence[float]) -> list[float]:
    """Pair by pair; pairs without a reference are left out."""
    return [value / by for value, by in zip(values, references, strict=True) if by > 0]


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
        self.wrong_bytes = 0
        self.is_direct = True
        self._folder = folder
        self._transfer, self._second_transfer = transfers
        call_blocks = max(1, _GET_CALL_BYTES // source.block_bytes)
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
        self.source.put_all(self.store, backlog_bytes_max=backlog_bytes_max or None)
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
        with self._open_slots() as (fds, offsets):
            return _timed(lambda: self._transfer.run(fds, offsets))

    def read_verified(self) -> TimedBytes:
        """The same, then hashes and copies each block once: the CPU that a verified get needs."""
        op_bytes = self._transfer.op_bytes
        target = self._make_target()
        source = np.frombuffer(self._transfer.arena, dtype=np.uint8)
        with self._open_slots() as (fds, offsets):

            def run() -> RawRate:
                num_bytes, started_s = 0, time.perf_counter()
                for first in range(0, len(fds), len(self._transfer.buffers)):
                    part = slice(first, first + len(self._transfer.buffers))
                    moved = self._transfer.run(fds[part], offsets[part]).num_bytes
                    _core.checksum_and_copy(source[:moved], target[:moved], op_bytes)
                    num_bytes += moved
                return RawRate(num_bytes=num_bytes, seconds=time.perf_counter() - started_s)

            return _timed(run)

    def get_bare(self) -> TimedBytes:
        """Reads with one transfer while a second thread hashes and copies what the other one read:
        what the processors here let two bare loops deliver, without any store.
        """
        op_bytes = self._transfer.op_bytes
        num_buffers = len(self._transfer.buffers)
        target = self._make_target()
        transfers = (self._transfer, self._second_transfer)
        sources = [np.frombuffer(it.arena, dtype=np.uint8) for it in transfers]

        def deliver(source: U8, num_bytes: int) -> None:
            _core.checksum_and_copy(source[:num_bytes], target[:num_bytes], op_bytes)

        with self._open_slots() as (fds, offsets), ThreadPoolExecutor(1) as pool:

            def run() -> RawRate:
                num_bytes, started_s = 0, time.perf_counter()
                delivered: Future[None] | None = None
                for turn, first in enumerate(range(0, len(fds), num_buffers)):
                    part = slice(first, first + num_buffers)
                    moved = transfers[turn % 2].run(fds[part], offsets[part]).num_bytes
                    if delivered:
                        delivered.result()
                    delivered = pool.submit(deliver, sources[turn % 2], moved)
                    num_bytes += moved
                if delivered:
                    delivered.result()
                return RawRate(num_bytes=num_bytes, seconds=time.perf_counter() - started_s)

            return _timed(run)

    def _make_target(self) -> U8:
        """Room for one group of blocks; page faults are no part of a delivery, as in get_all."""
        num_bytes = len(self._transfer.buffers) * self._transfer.op_bytes
        target = np.empty(num_bytes, dtype=np.uint8)
        target.fill(0xA5)
        return target

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

        return _timed(run)

    # ---- What both need ------------------------------------------------------------------------

    def run_pair(self, pair_index: int, written_fd: int, fresh_fd: int) -> None:
        """Adds one pair of each kind; who goes first changes from pair to pair."""
        is_raw_first = pair_index % 2 == 1
        self.gets.add(*_in_turn(self.get_all, self.read_raw, is_raw_first))
        self.verified_reads.add(self.gets.store[-1], self.read_verified())
        self.bare_gets.add(self.gets.store[-1], self.get_bare())
        self.overwriting_puts.add(
            *_in_turn(
                self.put_over, lambda: self.write_raw(written_fd, is_fresh=False), is_raw_first
            )
        )
        self.fresh_puts.add(
            *_in_turn(self.put_fresh, lambda: self.write_raw(fresh_fd, is_fresh=True), is_raw_first)
        )

    @contextmanager
    def open_raw_files(self) -> Iterator[tuple[int, int]]:
        """Two nameless files: one written before, one to be made anew each time."""
        with ExitStack() as stack:
            written_fd = stack.enter_context(_nameless_file(self._folder))
            fresh_fd = stack.enter_context(_nameless_file(self._folder))
            self.write_raw(written_fd, is_fresh=True)
            yield written_fd, fresh_fd

    @contextmanager
    def _open_slots(self) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.uint64]]]:
        with open_slots(self._folder, self.source.keys, self._transfer.op_bytes) as slots:
            self.is_direct = self.is_direct and slots.is_direct
            yield slots.fds, slots.offsets_bytes

    def _segment_inodes(self) -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in self._folder.glob("segment-*.kvtier")}

    def _counters(self) -> dict[str, int]:
        return tier_counters(self.store)["disk"]


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


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def _in_turn(
    store: Callable[[], TimedBytes], raw: Callable[[], TimedBytes], is_raw_first: bool
) -> tuple[TimedBytes, TimedBytes]:
    if is_raw_first:
        by_raw = raw()
        return store(), by_raw
    return store(), raw()


def _timed(run: Callable[[], RawRate]) -> TimedBytes:
    cpu_started_s = time.process_time()
    rate = run()
    return TimedBytes(
        num_bytes=rate.num_bytes,
        seconds=rate.seconds,
        cpu_s=time.process_time() - cpu_started_s,
        moved_bytes=rate.num_bytes,
    )


@contextmanager
def _nameless_file(folder: Path) -> Iterator[int]:
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
