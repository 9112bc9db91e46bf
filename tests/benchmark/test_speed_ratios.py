"""Speed as ratios to something else timed in the same run, so that machines and days compare.

`make bench-regress` runs it and keeps results; each floor is well below the bound that `make bench`
holds the store to: only a real loss fails, not a busy machine.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

import kvtier
from kvtier.bench.block_source import BlockSource, bench_namespace
from kvtier.bench.disk_command import DiskTask, measure_disk
from kvtier.bench.pairs import time_pairs
from kvtier.bench.timed_bytes import median

MIB = 1 << 20
NUM_BLOCKS = 32
NUM_KEYS = 65_536


class Benchmark(Protocol):
    """What is used of pytest-benchmark's fixture."""

    extra_info: dict[str, float]

    def pedantic(self, call: Callable[[], object], *, rounds: int, setup: object = None) -> None:
        """Times `call` that often."""


def record(benchmark: Benchmark, ratio: float, floor: float) -> None:
    benchmark.extra_info["ratio"] = ratio
    benchmark.extra_info["floor"] = floor
    assert ratio >= floor


@pytest.fixture
def source() -> Iterator[BlockSource]:
    with kvtier.open(None, host_bytes=2 * NUM_BLOCKS * MIB) as store:
        source = BlockSource(bench_namespace(store, MIB), NUM_BLOCKS)
        source.put_all(store)
        yield source


def test_a_host_get_against_a_plain_copy(benchmark: Benchmark, source: BlockSource) -> None:
    target = np.zeros_like(source.data)

    def get() -> None:
        assert source.namespace.get(source.keys, target).num_blocks == NUM_BLOCKS

    times = time_pairs(get, lambda: np.copyto(target, source.data))
    benchmark.pedantic(get, rounds=3)
    record(benchmark, times.rate_ratio, floor=0.5)


def test_a_host_put_against_a_plain_copy(benchmark: Benchmark, source: BlockSource) -> None:
    target = np.zeros_like(source.data)

    def clear() -> None:
        source.namespace.delete(source.keys)

    def put() -> None:
        assert source.namespace.put(source.keys, source.data).num_accepted == NUM_BLOCKS

    times = time_pairs(put, lambda: np.copyto(target, source.data), before=clear)
    benchmark.pedantic(put, rounds=3, setup=clear)
    record(benchmark, times.rate_ratio, floor=0.35)


def test_a_lookup_against_a_python_dictionary(benchmark: Benchmark) -> None:
    """The dictionary of a loop in Python is what engines use instead."""
    with kvtier.open(None, host_bytes=128 * MIB) as store:
        source = BlockSource(bench_namespace(store, 64), NUM_KEYS)
        source.put_all(store)
        table = {key.tobytes(): None for key in source.keys}
        texts = [key.tobytes() for key in source.keys]

        def look_up() -> None:
            assert source.namespace.lookup(source.keys).num_blocks == NUM_KEYS

        def look_up_in_table() -> None:
            assert sum(text in table for text in texts) == NUM_KEYS

        times = time_pairs(look_up, look_up_in_table)
        benchmark.pedantic(look_up, rounds=3)
        record(benchmark, times.rate_ratio, floor=0.5)


@pytest.mark.parametrize(("block_bytes", "floor"), [(MIB, 0.5), (64 << 10, 0.3)])
def test_the_disk_tier_against_the_bare_device(
    benchmark: Benchmark, block_bytes: int, floor: float
) -> None:
    parent = Path("build")
    parent.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="benchmark-", dir=parent))
    reports = []

    def measure() -> None:
        task = DiskTask(path=folder / "s", block_bytes=block_bytes, seconds=0, num_bytes=64 * MIB)
        reports.append(measure_disk(task))

    try:
        benchmark.pedantic(measure, rounds=1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report = reports[0]
    assert report.verdict == "good"
    benchmark.extra_info["put_ratio"] = median(report.fresh_puts.ratios)
    benchmark.extra_info["cpu_ratio"] = median(report.verified_reads.cpu_ratios)
    record(benchmark, median(report.gets.ratios), floor)
