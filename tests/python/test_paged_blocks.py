"""ns.attach, save and load on tensors in CPU memory: right bytes, ordered, or a clear refusal."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from paged_engine import (
    BLOCK_BYTES,
    MIB,
    NUM_LAYERS,
    NUM_ROWS,
    make_tensors,
    open_namespace,
    rows_of,
)

import kvtier
from kvtier import Outcome, PagedGeometry


@pytest.fixture(params=[False, True], ids=["fast saves", "gentle saves"])
def memory_namespace(request: pytest.FixtureRequest) -> object:
    store = kvtier.open(host_bytes=8 * MIB, gentle_saves=request.param)
    yield store.namespace(model="m", block_bytes=BLOCK_BYTES, fingerprint="f")
    store.close()


def test_saved_blocks_come_back_into_other_rows_from_host(
    memory_namespace: kvtier.Namespace,
) -> None:
    ns = memory_namespace
    engine = make_tensors(1)
    paged = ns.attach(engine, PagedGeometry.from_tensors(engine))
    keys = ns.keys(range(16 * 10))
    block_ids = [3, 1, 4, 15, 9, 2, 6, 5, 30, 31]
    want = rows_of(engine, block_ids)
    saved = paged.save(keys, block_ids).wait(10)
    assert saved.num_accepted == 10
    for tensor in engine:
        tensor[:] = 0x5C
    others = [20, 21, 22, 23, 24, 25, 26, 27, 28, 29]
    loaded = paged.load(keys, np.array(others, dtype=np.int32)).wait(10)
    assert loaded.num_blocks == 10
    assert loaded.mask.all()
    assert len(loaded.undefined_block_ids) == 0
    np.testing.assert_array_equal(rows_of(engine, others), want)
    untouched = [row for row in range(NUM_ROWS) if row not in others]
    assert (rows_of(engine, untouched) == 0x5C).all()


def test_a_saved_block_is_what_put_would_have_stored(memory_namespace: kvtier.Namespace) -> None:
    ns = memory_namespace
    engine = make_tensors(2)
    paged = ns.attach(engine, PagedGeometry.from_tensors(engine))
    keys = ns.keys(range(16 * 4))
    assert paged.save(keys, [7, 8, 9, 10]).wait(10).num_accepted == 4
    out = np.zeros((4, BLOCK_BYTES), dtype=np.uint8)
    assert ns.get(keys, out).num_blocks == 4
    np.testing.assert_array_equal(out, rows_of(engine, [7, 8, 9, 10]))
    # And the other way round: what was put is loaded.
    more = ns.keys(range(16 * 4), extra="put")
    data = np.random.default_rng(3).integers(0, 256, (4, BLOCK_BYTES), dtype=np.uint8)
    assert ns.put(more, data).num_accepted == 4
    assert paged.load(more, [0, 1, 2, 3]).wait(10).num_blocks == 4
    np.testing.assert_array_equal(rows_of(engine, [0, 1, 2, 3]), data)


def test_blocks_survive_a_restart_and_load_from_disk(disk_folder: Path) -> None:
    engine = make_tensors(4)
    want = rows_of(engine, list(range(30)))
    with open_namespace(disk_folder / "store")[0] as store:
        ns = store.namespace(model="m", block_bytes=BLOCK_BYTES, fingerprint="f")
        paged = ns.attach(engine, PagedGeometry.from_tensors(engine))
        keys = ns.keys(range(16 * 30))
        assert paged.save(keys, range(30)).wait(10).num_accepted == 30
        assert store.flush().durable_blocks == 30
    for tensor in engine:
        tensor[:] = 0
    store, ns = open_namespace(disk_folder / "store")
    with store:
        paged = ns.attach(engine, PagedGeometry.from_tensors(engine))
        assert set(ns.lookup(keys).tiers.tolist()) == {2}
        assert paged.load(keys, range(30)).wait(10).num_blocks == 30
        np.testing.assert_array_equal(rows_of(engine, list(range(30))), want)
        stats = store.stats()
        assert stats["tiers"]["disk"]["hits"] == 30
        assert stats["jobs"]["loads"] == 1


def test_a_missing_block_ends_the_prefix_and_its_row_is_untouched(
    memory_namespace: kvtier.Namespace,
) -> None:
    ns = memory_namespace
    engine = make_tensors(5)
    paged = ns.attach(engine, PagedGeometry.from_tensors(engine))
    keys = ns.keys(range(16 * 6))
    paged.save(keys[:3], [0, 1, 2]).wait(10)
    before = rows_of(engine, [13, 14, 15])
    loaded = paged.load(keys, [10, 11, 12, 13, 14, 15]).wait(10)
    assert loaded.num_blocks == 3
    assert loaded.outcomes == [Outcome.DONE] * 3 + [Outcome.MISS] * 3
    np.testing.assert_array_equal(rows_of(engine, [13, 14, 15]), before)


def test_poll_and_event_fd_tell_of_saves_and_loads(memory_namespace: kvtier.Namespace) -> None:
    ns = memory_namespace
    store = ns._store
    engine = make_tensors(6)
    paged = ns.attach(engine, PagedGeometry.from_tensors(engine))
    keys = ns.keys(range(16 * 3))
    save = paged.save(keys, [0, 1, 2])
    end_s = time.monotonic() + 10
    polled: list[object] = []
    while not polled and time.monotonic() < end_s:
        polled = store.poll()
    assert polled == [save]
    assert save.result.num_accepted == 3
    load = paged.load(keys, [3, 4, 5])
    load.wait_on(0)
    load.wait(10)
    assert store.poll() == [load]


def test_tensors_live_as_long_as_a_job_of_them(memory_namespace: kvtier.Namespace) -> None:
    ns = memory_namespace
    keys = ns.keys(range(16 * 20))
    engine = make_tensors(7)
    want = rows_of(engine, list(range(20)))
    job = ns.attach(engine, PagedGeometry.from_tensors(engine)).save(keys, range(20))
    del engine
    gc.collect()
    assert job.wait(10).num_accepted == 20
    out = np.zeros((20, BLOCK_BYTES), dtype=np.uint8)
    assert ns.get(keys, out).num_blocks == 20
    np.testing.assert_array_equal(out, want)


def test_many_threads_save_and_load_the_same_store(disk_folder: Path) -> None:
    store, ns = open_namespace(disk_folder / "store", host_bytes=MIB)
    failures: list[str] = []
    num_loaded: list[int] = []

    def work(number: int) -> None:
        engine = make_tensors(100 + number)
        paged = ns.attach(engine, PagedGeometry.from_tensors(engine))
        want = rows_of(engine, list(range(16)))
        for round_number in range(20):
            keys = ns.keys(range(16 * 16), extra=f"{number} {round_number % 5}")
            paged.save(keys, range(16)).wait(30)
            loaded = paged.load(keys, range(16, 32)).wait(30)
            num_loaded.append(loaded.num_blocks)
            # None: given up for others before the disk had them.
            got = rows_of(engine, list(range(16, 32)))[: loaded.num_blocks]
            if not np.array_equal(got, want[: loaded.num_blocks]):
                failures.append(f"wrong bytes: thread {number} round {round_number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    assert failures == []
    assert sum(num_loaded) > 6 * 20 * 16 / 2


def test_one_raw_cross_layer_tensor_with_stated_fragments(
    memory_namespace: kvtier.Namespace,
) -> None:
    ns = memory_namespace
    stride = NUM_LAYERS * 2 * 16 * 48 + 64
    memory = np.random.default_rng(8).integers(0, 256, NUM_ROWS * stride, dtype=np.uint8)
    raw = (memory.ctypes.data, memory.nbytes, "cpu")
    # Halves in the other order: the list's order is the block's.
    half = BLOCK_BYTES // 2
    geometry = PagedGeometry(fragments=[(0, half, stride, half), (0, 0, stride, half)])
    paged = ns.attach([raw], geometry)
    keys = ns.keys(range(16))
    assert paged.save(keys, [5]).wait(10).num_accepted == 1
    out = np.zeros((1, BLOCK_BYTES), dtype=np.uint8)
    assert ns.get(keys, out).num_blocks == 1
    row = memory[5 * stride : 5 * stride + BLOCK_BYTES]
    np.testing.assert_array_equal(out[0], np.concatenate([row[half:], row[:half]]))


def test_parts_have_a_checksum_each(disk_folder: Path) -> None:
    engine = make_tensors(9)
    with kvtier.open(disk_folder / "store", host_bytes=8 * MIB, disk_bytes=64 * MIB) as store:
        part = 2 * 16 * 48
        ns = store.namespace(
            model="m", block_bytes=BLOCK_BYTES, fingerprint="f", parts=[part] * NUM_LAYERS
        )
        paged = ns.attach(engine, PagedGeometry.from_tensors(engine))
        keys = ns.keys(range(16 * 8))
        want = rows_of(engine, list(range(8)))
        assert paged.save(keys, range(8)).wait(10).num_accepted == 8
        store.flush()
        store.clear(tiers=("host",))
        assert paged.load(keys, range(8, 16)).wait(10).num_blocks == 8
        np.testing.assert_array_equal(rows_of(engine, list(range(8, 16))), want)


def test_wrong_arguments_are_named(memory_namespace: kvtier.Namespace) -> None:
    ns = memory_namespace
    engine = make_tensors(10)
    geometry = PagedGeometry.from_tensors(engine)
    paged = ns.attach(engine, geometry)
    keys = ns.keys(range(16 * 2))
    with pytest.raises(kvtier.UsageError, match="block_id=32"):
        paged.save(keys, [0, NUM_ROWS]).wait(10)
    with pytest.raises(kvtier.UsageError, match="block_id=-1"):
        paged.load(keys, [0, -1]).wait(10)
    with pytest.raises(kvtier.UsageError, match="3 of them for 2 keys"):
        paged.save(keys, [0, 1, 2])
    with pytest.raises(kvtier.UsageError, match="twice"):
        paged.load(keys, [1, 1])
    with pytest.raises(kvtier.UsageError, match="whole numbers"):
        paged.save(keys, [0.5, 1.0])
    with pytest.raises(kvtier.UsageError, match="CPU memory, which has no streams"):
        paged.save(keys, [0, 1], stream=7)
    with pytest.raises(kvtier.UsageError, match="PagedGeometry"):
        ns.attach(engine, "geometry")
    with pytest.raises(kvtier.ConfigError, match=f"block_bytes={BLOCK_BYTES}"):
        ns.attach(engine[:2], PagedGeometry.from_tensors(engine[:2]))
    with pytest.raises(kvtier.UsageError, match="tensor"):
        ns.attach(engine[:2], geometry)
    with pytest.raises(
        (kvtier.UnsupportedError, kvtier.UsageError), match=r"cuda|CUDA|driver|device"
    ):
        ns.attach(
            [(4096, 1 << 20, "cuda:0")], PagedGeometry(fragments=[(0, 0, BLOCK_BYTES, BLOCK_BYTES)])
        )
    put = ns.put_async(keys, np.zeros((2, BLOCK_BYTES), dtype=np.uint8))
    with pytest.raises(kvtier.UsageError, match="touches no device memory"):
        put.wait_on(0)
    put.wait(10)


def test_wait_on_of_tensors_in_cpu_memory_waits_for_the_end(
    memory_namespace: kvtier.Namespace,
) -> None:
    """There is no stream to order: returning early would let the caller read unloaded rows."""
    ns = memory_namespace
    engine = make_tensors(16)
    paged = ns.attach(engine, PagedGeometry.from_tensors(engine))
    keys = ns.keys(range(16 * 16))
    for _ in range(20):
        ns._store.clear()
        save = paged.save(keys, range(16))
        save.wait_on(0)
        assert save.done()
        load = paged.load(keys, range(16, 32))
        load.wait_on(7)
        assert load.done()
        assert load.result.num_blocks == 16


def test_a_dropped_attachment_serves_its_jobs_to_the_end(disk_folder: Path) -> None:
    """Neither the job nor the attachment is kept, and the blocks come from disk one by one."""
    store, ns = open_namespace(disk_folder / "store")
    engine = make_tensors(17)
    want = rows_of(engine, list(range(16)))
    keys = ns.keys(range(16 * 16))
    with store:
        ns.attach(engine, PagedGeometry.from_tensors(engine)).save(keys, range(16)).wait(10)
        store.flush()
        store.clear(tiers=("host",))
        store.poll()
        for tensor in engine:
            tensor[:] = 0
        ns.attach(engine, PagedGeometry.from_tensors(engine)).load(keys, range(16))
        gc.collect()
        end_s = time.monotonic() + 10
        polled: list[kvtier.Job] = []
        while not polled and time.monotonic() < end_s:
            polled = store.poll()
        assert polled[0].result.num_blocks == 16
        np.testing.assert_array_equal(rows_of(engine, list(range(16))), want)
        for _ in range(2000):  # Nothing is left behind by an attachment that was dropped.
            ns.attach(engine, PagedGeometry.from_tensors(engine)).load(keys, range(16))
        while store.stats()["jobs"]["unfinished"] > 0:
            store.poll()


def test_after_detach_and_close_calls_are_refused(memory_namespace: kvtier.Namespace) -> None:
    ns = memory_namespace
    engine = make_tensors(12)
    paged = ns.attach(engine, PagedGeometry.from_tensors(engine))
    other = ns.attach(engine, PagedGeometry.from_tensors(engine))
    keys = ns.keys(range(16))
    job = paged.save(keys, [0])
    job.wait(10)
    paged.detach()
    paged.detach()
    with pytest.raises(kvtier.UsageError, match="detached"):
        paged.save(keys, [0])
    load = other.load(keys, [1])
    ns._store.close()
    assert load.done()
    load.wait_on(0)  # Has ended: nothing to wait for.
    with pytest.raises(kvtier.ClosedError):
        other.load(keys, [1])


def test_close_with_saves_and_loads_under_way_ends(disk_folder: Path) -> None:
    for round_number in range(5):
        store, ns = open_namespace(disk_folder / f"store-{round_number}")
        engine = make_tensors(13)
        paged = ns.attach(engine, PagedGeometry.from_tensors(engine))
        jobs = []
        for number in range(20):
            keys = ns.keys(range(16 * 16), extra=str(number))
            jobs.append(paged.save(keys, range(16)))
            jobs.append(paged.load(keys, range(16, 32)))
        start_s = time.monotonic()
        store.close()
        assert time.monotonic() - start_s < 8
        assert all(job.done() for job in jobs)


def test_a_forked_child_is_refused_and_ends(memory_namespace: kvtier.Namespace) -> None:
    ns = memory_namespace
    engine = make_tensors(14)
    paged = ns.attach(engine, PagedGeometry.from_tensors(engine))
    keys = ns.keys(range(16))
    paged.save(keys, [0]).wait(10)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            paged.save(keys, [0])
        except kvtier.ClosedError:
            del paged, ns
            gc.collect()
            code = 0
        os._exit(code)
    end_s = time.monotonic() + 20
    status = (0, 0)
    while status[0] == 0 and time.monotonic() < end_s:
        status = os.waitpid(child, os.WNOHANG)
    assert status == (child, 0)
    assert paged.load(keys, [1]).wait(10).num_blocks == 1


def test_stats_tell_what_moved(memory_namespace: kvtier.Namespace) -> None:
    ns = memory_namespace
    engine = make_tensors(15)
    paged = ns.attach(engine, PagedGeometry.from_tensors(engine))
    keys = ns.keys(range(16 * 4))
    paged.save(keys, range(4)).wait(10)
    paged.load(keys, range(4, 8)).wait(10)
    stats = paged.stats()
    moved = {
        name: sum(v for n, v in stats.items() if n.startswith(name) and n.endswith("_bytes"))
        for name in ("save", "load")
    }
    assert moved == {"save": 4 * BLOCK_BYTES, "load": 4 * BLOCK_BYTES}
    assert stats["failed_jobs"] == 0
