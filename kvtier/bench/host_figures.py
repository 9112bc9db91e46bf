"""Figures of the host tier and of the index: against plain copies, and per key. One thread, but
where the figure is about several.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

import kvtier
from kvtier.bench.block_source import BenchmarkError, BlockSource, bench_namespace
from kvtier.bench.figure import Figure
from kvtier.bench.pairs import median_s, time_pairs
from kvtier.bench.payload import U8
from kvtier.bench.replay import tier_counters
from kvtier.units import MIB

BLOCK_BYTES = MIB
SMALL_BLOCK_BYTES = 64
NUM_ENTRIES = 1_000_000
NUM_LOOKUP_KEYS = 65_536
_PUT_CALL_BLOCKS = 16_384
_COPIES_A_THREAD = 6


def measure_host_copies(is_quick: bool) -> list[Figure]:
    """Put and get of one thread against numpy.copyto of the same bytes, checksums on and off."""
    num_blocks = 16 if is_quick else 128
    return [
        figure
        for has_checksum in (True, False)
        for figure in _measure_copies(num_blocks, has_checksum=has_checksum)
    ]


def _measure_copies(num_blocks: int, *, has_checksum: bool) -> Iterator[Figure]:
    name = "checksum on" if has_checksum else "checksum off"
    with _host_store(2 * num_blocks * BLOCK_BYTES, has_checksum) as store:
        source = BlockSource(bench_namespace(store, BLOCK_BYTES), num_blocks)
        namespace, target = source.namespace, np.zeros_like(source.data)

        def copy() -> None:
            np.copyto(target, source.data)

        def put() -> None:
            result = namespace.put(source.keys, source.data)
            _require(result.num_accepted, num_blocks, "put")

        def get() -> None:
            result = namespace.get(source.keys, target)
            _require(result.num_blocks, num_blocks, "got")

        puts = time_pairs(put, copy, before=lambda: namespace.delete(source.keys))
        yield Figure(
            name=f"host put / numpy.copyto, {name}",
            value=puts.rate_ratio,
            at_least=0.70 if has_checksum else 0.90,
            note=puts.note(source.num_bytes),
        )
        gets = time_pairs(get, copy, before=lambda: target.fill(0xA5))
        target.fill(0xA5)
        get()
        if source.check(0, target):
            raise BenchmarkError("wrong bytes came back from host")
        yield Figure(
            name=f"host get / numpy.copyto, {name}",
            value=gets.rate_ratio,
            at_least=0.90,
            note=gets.note(source.num_bytes),
        )


def measure_lookups(is_quick: bool) -> list[Figure]:
    """Time a key in an index of a million entries, of a short call, and of a lease."""
    num_entries = NUM_ENTRIES // (20 if is_quick else 1)
    num_runs = 5 if is_quick else 21
    with _host_store(num_entries * 512 + 64 * MIB, has_checksum=True) as store:
        namespace = bench_namespace(store, SMALL_BLOCK_BYTES)
        keys = namespace.keys(np.arange(num_entries, dtype=np.int64))
        _fill_index(namespace, keys)
        num_found = tier_counters(store)["host"]["blocks"]
        _require(num_found, num_entries, "stored")
        many, few = keys[:NUM_LOOKUP_KEYS], keys[1000:1016]
        scattered = np.ascontiguousarray(
            keys[np.random.default_rng(7).permutation(num_entries)[: len(many)]]
        )
        _require(namespace.lookup(many).num_blocks, len(many), "found")
        prefix_s = median_s(lambda: namespace.lookup(many), num_runs)
        scattered_s = median_s(lambda: namespace.lookup(scattered, prefix=False), num_runs)
        few_s = median_s(lambda: namespace.lookup(few, prefix=False), 200 * num_runs)
        lease_s = median_s(lambda: namespace.lease(few, prefix=False).release(), 100 * num_runs)
    entries = f"{num_entries:,} entries"
    return [
        Figure(name=f"lookup of {len(many):,} keys, one chain", value=prefix_s / len(many) * 1e9,
               unit="ns/key", at_most=35, note=f"{entries}; goal 20"),
        Figure(name=f"lookup of {len(many):,} keys, scattered",
               value=scattered_s / len(many) * 1e9, unit="ns/key", note=entries),
        Figure(name="lookup of 16 keys", value=few_s * 1e6, unit="µs", at_most=3, note=entries),
        Figure(name="lease and release of 16 keys", value=lease_s * 1e6, unit="µs", note=entries),
    ]  # fmt: skip


def measure_threads(is_quick: bool) -> list[Figure]:
    """Host gets of several threads against as many threads that copy the same bytes."""
    num_blocks = 8 if is_quick else 32
    with _host_store(2 * num_blocks * BLOCK_BYTES, has_checksum=True) as store:
        source = BlockSource(bench_namespace(store, BLOCK_BYTES), num_blocks)
        source.put_all(store)
        return [
            _measure_threads(source, num_threads)
            for num_threads in ((1, 2) if is_quick else (1, 2, 4, 8, 16))
        ]


def _measure_threads(source: BlockSource, num_threads: int) -> Figure:
    targets = [np.zeros_like(source.data) for _ in range(num_threads)]

    def get(target: U8) -> None:
        result = source.namespace.get(source.keys, target)
        _require(result.num_blocks, source.num_blocks, "got")

    def copy(target: U8) -> None:
        np.copyto(target, source.data)

    times = time_pairs(
        lambda: run_in_threads([partial(get, target) for target in targets]),
        lambda: run_in_threads([partial(copy, target) for target in targets]),
    )
    return Figure(
        name=f"host get / plain copy, {num_threads} threads each",
        value=times.rate_ratio,
        at_least=0.90 if num_threads == 2 else None,
        note=times.note(source.num_bytes * num_threads * _COPIES_A_THREAD),
    )


def run_in_threads(calls: list[Callable[[], None]]) -> None:
    """Runs each call some times in a thread of its own, all at once. Raises the first error."""
    barrier = threading.Barrier(len(calls))
    errors: list[Exception] = []

    def work(call: Callable[[], None]) -> None:
        try:
            barrier.wait()
            for _ in range(_COPIES_A_THREAD):
                call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _fill_index(namespace: kvtier.Namespace, keys: U8) -> None:
    data = np.zeros((_PUT_CALL_BLOCKS, SMALL_BLOCK_BYTES), dtype=np.uint8)
    for first in range(0, len(keys), _PUT_CALL_BLOCKS):
        part = keys[first : first + _PUT_CALL_BLOCKS]
        # The keys stand in the bytes: a block is told from its neighbours.
        data[: len(part), :16] = part
        parent = keys[first - 1] if first else None
        result = namespace.put(part, data[: len(part)], parent=parent)
        _require(result.num_accepted, len(part), "stored")


@contextmanager
def _host_store(host_bytes: int, has_checksum: bool) -> Iterator[kvtier.BlockStore]:
    with kvtier.open(None, host_bytes=host_bytes, checksum=has_checksum) as store:
        yield store


def _require(num_blocks: int, num_wanted: int, what: str) -> None:
    if num_blocks != num_wanted:
        raise BenchmarkError(f"{what} {num_blocks} of {num_wanted} blocks")
