"""What the disk tier costs others: host gets beside disk writes, a Python thread beside disk gets;
and one I/O engine against the other. Threads of its own, ended before a call returns.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

import kvtier
from kvtier.bench.bare_loops import BareLoops
from kvtier.bench.block_source import (
    BenchmarkError,
    BlockSource,
    bench_namespace,
    fresh_salt,
    wait_for_backlog,
)
from kvtier.bench.disk_pairs import DiskPairs, nameless_file
from kvtier.bench.figure import Figure
from kvtier.bench.pairs import NUM_PAIRS, spread, time_pairs
from kvtier.bench.payload import U8
from kvtier.bench.raw_transfer import open_raw_transfers
from kvtier.bench.replay import tier_counters
from kvtier.bench.report import percentile
from kvtier.units import KIB, MIB, format_bytes

_BLOCK_BYTES = MIB
_HOT_BLOCKS = 16


def measure_writing(folder: Path, is_quick: bool) -> list[Figure]:
    """The 99th percentile of host hits while the disk writes at full rate, against an idle disk;
    and of bare copies beside bare writes, copies and hashes: the processors' and the memory's part.
    """
    num_gets = 200 if is_quick else 2000
    gets, copies, written_bytes = _Disturbed(), _Disturbed(), 0
    with ExitStack() as stack:
        store = stack.enter_context(
            kvtier.open(folder, host_bytes=256 * MIB, disk_bytes=2048 * MIB)
        )
        hot = BlockSource(bench_namespace(store, _BLOCK_BYTES), _HOT_BLOCKS)
        hot.put_all(store)
        store.flush(60)
        out = np.zeros((1, _BLOCK_BYTES), dtype=np.uint8)
        transfers = stack.enter_context(
            open_raw_transfers(depth=4, op_bytes=_BLOCK_BYTES, num_buffers=8)
        )
        loops = BareLoops(transfers)
        fd = stack.enter_context(nameless_file(folder))
        stack.enter_context(hot.namespace.lease(hot.keys, ttl_s=3600.0))
        get = partial(_get_one, hot, out)
        copy = partial(_copy_one, hot.data, out)
        for _ in range(NUM_PAIRS):
            gets.idle_us.append(_p99_us(get, num_gets))
            before = tier_counters(store)["disk"]["bytes_written"]
            with _writing(store):
                gets.busy_us.append(_p99_us(get, num_gets))
                written_bytes += tier_counters(store)["disk"]["bytes_written"] - before
            wait_for_backlog(store, 0)
            copies.idle_us.append(_p99_us(copy, num_gets))
            with _repeating(lambda: loops.put(hot.data, fd)):
                copies.busy_us.append(_p99_us(copy, num_gets))
    if not written_bytes:
        raise BenchmarkError("no disk traffic: nothing was written beside the gets")
    written = f"{written_bytes / 1e9:.1f} GB written meanwhile"
    return [
        gets.figure("p99 of a host get while the disk writes / idle", written, at_most=2.0),
        copies.figure("the same of bare copies beside bare writes, hashes and copies", "no store"),
    ]


@dataclass
class _Disturbed:
    """Times of the same calls with and without something else going on, a pair each."""

    idle_us: list[float] = field(default_factory=list)
    busy_us: list[float] = field(default_factory=list)

    def figure(self, name: str, note: str, at_most: float | None = None) -> Figure:
        ratios = [busy / idle for busy, idle in zip(self.busy_us, self.idle_us, strict=True)]
        return Figure(
            name=name,
            value=statistics.median(ratios),
            at_most=at_most,
            note=f"{statistics.median(self.busy_us):.0f} and {statistics.median(self.idle_us):.0f} "
            f"µs a 1 MiB block; {note}; {spread(ratios)}",
        )


def measure_counting(folder: Path, is_quick: bool) -> list[Figure]:
    """How much a busy Python thread loses while another one waits for a get from disk, and while
    bare reads, hashes and copies of the same blocks run: the processors' and the memory's part.
    """
    num_blocks = (64 if is_quick else 1024) * MIB // _BLOCK_BYTES
    losses: list[_Loss] = []
    bare_losses: list[_Loss] = []
    with kvtier.open(
        folder, host_bytes=0, disk_bytes=num_blocks * _BLOCK_BYTES * 5 // 4 + 256 * MIB
    ) as store:
        source = BlockSource(bench_namespace(store, _BLOCK_BYTES), num_blocks)
        source.put_all(store)
        store.flush(300)
        out = np.zeros_like(source.data)
        read_before = tier_counters(store)["disk"]["bytes_read"]
        with open_raw_transfers(depth=4, op_bytes=_BLOCK_BYTES, num_buffers=8) as transfers:
            bare = DiskPairs(store, folder, source, transfers)
            for _ in range(NUM_PAIRS):
                losses.append(_count_during(lambda: _get_all(source, out)))
                bare_losses.append(_count_during(bare.get_bare))
        read_bytes = tier_counters(store)["disk"]["bytes_read"] - read_before
    if not read_bytes:
        raise BenchmarkError("no disk traffic: nothing was read from disk")
    what = f"{num_blocks * _BLOCK_BYTES / MIB:.0f} MiB"
    return [
        _loss_figure("loss of a counting thread during a disk get", losses, what, at_most=5),
        _loss_figure("the same during bare reads, hashes and copies", bare_losses, what),
    ]


@dataclass(frozen=True)
class _Loss:
    percent: float
    seconds: float


def _count_during(call: Callable[[], object]) -> _Loss:
    """The rate of a counting thread during the call, against that of as long a wait."""
    with _counting() as counter:
        before, started_s = counter[0], time.perf_counter()
        call()
        call_s = time.perf_counter() - started_s
        rate = (counter[0] - before) / call_s
        before, started_s = counter[0], time.perf_counter()
        # As long, and as idle a thread as one that waits without the interpreter.
        threading.Event().wait(call_s)
        idle_rate = (counter[0] - before) / (time.perf_counter() - started_s)
    return _Loss(100 * (1 - rate / idle_rate), call_s)


def _loss_figure(
    name: str, losses: Sequence[_Loss], what: str, at_most: float | None = None
) -> Figure:
    percents = [it.percent for it in losses]
    return Figure(
        name=name,
        value=statistics.median(percents),
        unit="%",
        at_most=at_most,
        note=f"{what}, {statistics.median(it.seconds for it in losses):.2f} s; "
        f"{min(percents):.1f} to {max(percents):.1f} %",
    )


def measure_engines(folder: Path, is_quick: bool) -> list[Figure]:
    """Disk gets of a store on threads against one on the ring, in turns."""
    num_bytes = (64 if is_quick else 512) * MIB
    return [
        _compare_engines(folder, block_bytes, num_bytes // block_bytes, at_least)
        for block_bytes, at_least in ((MIB, 0.90), (64 * KIB, 0.60))
    ]


def _compare_engines(folder: Path, block_bytes: int, num_blocks: int, at_least: float) -> Figure:
    name = f"disk get on threads / on the ring, {format_bytes(block_bytes)}"
    try:
        with ExitStack() as stack:
            ring, threads = (
                stack.enter_context(
                    _filled(folder / f"{io}-{block_bytes}", io, block_bytes, num_blocks)
                )
                for io in ("uring", "threads")
            )
            out = np.zeros_like(ring.data)
            times = time_pairs(lambda: _get_all(threads, out), lambda: _get_all(ring, out))
            note = times.note(ring.num_bytes)
    except kvtier.ConfigError as error:
        return Figure(name=name, value=None, at_least=at_least, note=f"no ring: {error}")
    return Figure(name=name, value=times.rate_ratio, at_least=at_least, note=note)


@contextmanager
def _filled(folder: Path, io: str, block_bytes: int, num_blocks: int) -> Iterator[BlockSource]:
    disk_bytes = num_blocks * block_bytes * 5 // 4 + 256 * MIB
    with kvtier.open(folder, host_bytes=0, disk_bytes=disk_bytes, io=io) as store:
        source = BlockSource(bench_namespace(store, block_bytes), num_blocks)
        source.put_all(store)
        store.flush(300)
        yield source


def _get_all(source: BlockSource, out: U8) -> None:
    num_got = source.namespace.get(source.keys, out).num_blocks
    if num_got != source.num_blocks:
        raise BenchmarkError(f"got {num_got} of {source.num_blocks} blocks")


def _p99_us(call: Callable[[int], None], num_calls: int) -> float:
    times_us = []
    for index in range(num_calls):
        started_s = time.perf_counter()
        call(index)
        times_us.append((time.perf_counter() - started_s) * 1e6)
    return percentile(times_us, 99) or 0.0


def _get_one(hot: BlockSource, out: U8, index: int) -> None:
    key = hot.keys[index % hot.num_blocks :][:1]
    if hot.namespace.get(key, out).num_blocks != 1:
        raise BenchmarkError("a leased block was not got")


def _copy_one(data: U8, out: U8, index: int) -> None:
    np.copyto(out[0], data[index % len(data)])


@contextmanager
def _writing(store: kvtier.BlockStore) -> Iterator[None]:
    """Puts new blocks in a thread, as fast as the disk takes them; removes them afterwards."""
    source = BlockSource(bench_namespace(store, _BLOCK_BYTES, salt=fresh_salt()), 64)

    def write() -> None:
        source.put_all(store, backlog_bytes_max=16 * MIB)
        source.namespace.delete(source.keys)

    with _repeating(write):
        yield


@contextmanager
def _repeating(call: Callable[[], object]) -> Iterator[None]:
    """Calls it in a thread, again and again."""
    is_over = threading.Event()
    errors: list[Exception] = []

    def repeat() -> None:
        try:
            while not is_over.is_set():
                call()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    if errors:
        raise errors[0]


@contextmanager
def _counting() -> Iterator[list[int]]:
    """A thread that counts as fast as Python can."""
    counter = [0]
    is_over = threading.Event()

    def count() -> None:
        while not is_over.is_set():
            for _ in range(1000):
                counter[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield counter
    finally:
        is_over.set()
        thread.join()
