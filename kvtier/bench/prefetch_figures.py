"""What a promotion from disk into the host tier costs, beside reads and hashes of the slots."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import kvtier
from kvtier import _core
from kvtier.bench.block_source import BenchmarkError, BlockSource, bench_namespace
from kvtier.bench.disk_command import fitting_depth
from kvtier.bench.figure import Figure
from kvtier.bench.open_slots import open_slots
from kvtier.bench.pairs import NUM_PAIRS, spread
from kvtier.bench.payload import U8
from kvtier.bench.raw_transfer import RawTransfer, open_raw_transfer
from kvtier.bench.replay import tier_counters
from kvtier.units import KIB, MIB, format_bytes

_CPU_RATIO_MAX = 1.2
_POLL_S = 0.002
_HOST_TIER = 1
_PATIENCE_S = 120.0


def measure_prefetch(folder: Path, is_quick: bool) -> list[Figure]:
    """CPU of a prefetch, all threads of the process, to the last block's arrival."""
    num_bytes = (32 if is_quick else 128) * MIB
    figures = []
    for block_bytes in (MIB, 64 * KIB):
        num_blocks = num_bytes // block_bytes
        figures += _measure_size(folder / str(block_bytes), block_bytes, num_blocks)
    return figures


def _measure_size(folder: Path, block_bytes: int, num_blocks: int) -> list[Figure]:
    num_bytes = num_blocks * block_bytes
    ours_s: list[float] = []
    small_s: list[float] = []
    as_large_s: list[float] = []
    # A prefetch queues no more than a quarter of the host tier.
    host_bytes = 5 * num_bytes
    with kvtier.open(folder, host_bytes=host_bytes, disk_bytes=2 * host_bytes) as store:
        source = BlockSource(bench_namespace(store, block_bytes), num_blocks)
        source.put_all(store)
        store.flush(300)
        depth = fitting_depth(block_bytes, str(_mode(store)))
        with ExitStack() as stack:
            # Each with buffers for one group: as many as make up the memory that a host tier fills.
            transfers = [
                stack.enter_context(open_raw_transfer(depth=depth, op_bytes=block_bytes))
                for _ in range(-(-num_blocks // depth))
            ]
            for pair_index in range(-1, NUM_PAIRS):
                store.clear(["host"])
                times = [
                    _cpu_of_prefetch(store, source),
                    _cpu_of_reads(folder, source, transfers[:1]),
                    _cpu_of_reads(folder, source, transfers),
                ]
                if pair_index >= 0:  # The first one warms up.
                    for kept_s, cpu_s in zip((ours_s, small_s, as_large_s), times, strict=True):
                        kept_s.append(cpu_s)
    name = f"CPU of a prefetch / raw read + hash{{}}, {format_bytes(block_bytes)}"
    return [
        _ratio(name.format(""), ours_s, small_s, num_bytes),
        # A host tier keeps what it reads: small buffers, read into again and again, stay in a cache
        # from which a hash costs a third.
        _ratio(name.format(" in as much memory"), ours_s, as_large_s, num_bytes),
    ]


def _ratio(name: str, ours_s: list[float], reference_s: list[float], num_bytes: int) -> Figure:
    ratios = [ours / by for ours, by in zip(ours_s, reference_s, strict=True)]
    return Figure(
        name=name,
        value=statistics.median(ratios),
        at_most=_CPU_RATIO_MAX,
        note=f"{_per_gb(ours_s, num_bytes):.3f} of {_per_gb(reference_s, num_bytes):.3f} s per GB; "
        f"{spread(ratios)}",
    )


def _cpu_of_prefetch(store: kvtier.BlockStore, source: BlockSource) -> float:
    read_before = tier_counters(store)["disk"]["bytes_read"]
    # A job that is about to end still counts against what may be queued.
    _wait_until(lambda: not store.stats()["jobs"]["unfinished"])  # type: ignore[index]
    started_s = time.process_time()
    source.namespace.prefetch(source.keys)
    # Lookups, of the last block first: they cost next to nothing, as what is measured must not.
    _wait_until(lambda: _is_in_host(source, source.keys[-1:]) and _is_in_host(source, source.keys))
    cpu_s = time.process_time() - started_s
    if tier_counters(store)["disk"]["bytes_read"] - read_before < source.num_bytes:
        raise BenchmarkError("no disk traffic: the prefetch read nothing")
    return cpu_s


def _wait_until(is_done: Callable[[], bool], pause: Callable[[float], None] = time.sleep) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not is_done():
        if time.monotonic() > deadline_s:
            raise BenchmarkError("prefetched blocks did not arrive in the host tier")
        pause(_POLL_S)


def _is_in_host(source: BlockSource, keys: U8) -> bool:
    return bool(np.all(source.namespace.lookup(keys, prefix=False).tiers == _HOST_TIER))


def _cpu_of_reads(folder: Path, source: BlockSource, transfers: Sequence[RawTransfer]) -> float:
    """Reads group by group, each with the next transfer, and hashes what has just arrived."""
    arenas = [np.frombuffer(it.arena, dtype=np.uint8) for it in transfers]
    num_buffers = len(transfers[0].buffers)
    with open_slots(folder, source.keys, transfers[0].op_bytes) as slots:
        started_s = time.process_time()
        for turn, first in enumerate(range(0, len(slots.fds), num_buffers)):
            part = slice(first, first + num_buffers)
            transfer, arena = transfers[turn % len(transfers)], arenas[turn % len(transfers)]
            moved = transfer.run(slots.fds[part], slots.offsets_bytes[part]).num_bytes
            _core.checksum_and_copy(arena[:moved], None, transfer.op_bytes)
        return time.process_time() - started_s


def _mode(store: kvtier.BlockStore) -> object:
    return store.stats()["tiers"]["disk"]["mode"]["io"]  # type: ignore[index]


def _per_gb(times_s: Sequence[float], num_bytes: int) -> float:
    return statistics.median(times_s) / (num_bytes / 1e9)
