"""Jobs: results, buffers, cancelling, polling, and what outlives what."""

import asyncio
import gc
import select
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
from payload import canary, payloads
from simulated_store import MIB, SimulatedStore
from store_setup import BLOCK_BYTES, OpenStore, namespace_of

import kvtier
from kvtier import Outcome, _core
from kvtier.job import Job

NUM_BLOCKS = 40


def test_jobs_give_what_the_blocking_calls_give(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(4 * (NUM_BLOCKS + 2)))
    data = payloads(keys, 0, BLOCK_BYTES)
    put = ns.put_async(keys[:NUM_BLOCKS], data[:NUM_BLOCKS])
    put_result = put.wait(30)
    assert put.done()
    assert put_result.num_accepted == NUM_BLOCKS
    assert put_result.outcomes == [Outcome.DONE] * NUM_BLOCKS
    assert put.result is put_result
    out = canary(len(keys), BLOCK_BYTES)
    got = ns.get_async(keys, out).wait()
    assert got.num_blocks == NUM_BLOCKS
    assert got.mask.tolist() == [True] * NUM_BLOCKS + [False] * 2
    np.testing.assert_array_equal(out[:NUM_BLOCKS], data[:NUM_BLOCKS])
    np.testing.assert_array_equal(out[NUM_BLOCKS:], canary(2, BLOCK_BYTES))


def test_a_later_call_finds_the_keys_of_an_earlier_job(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(4 * NUM_BLOCKS))
    data = payloads(keys, 0, BLOCK_BYTES)
    jobs = []
    for first in range(0, NUM_BLOCKS, 4):
        parent = keys[first - 1] if first else None
        part = slice(first, first + 4)
        jobs.append(ns.put_async(keys[part], data[part], parent=parent))
    again = ns.put(keys, data)
    assert again.num_accepted == NUM_BLOCKS
    assert [job.wait(30).num_accepted for job in jobs] == [4] * len(jobs)


def test_wrong_buffers_are_refused_before_anything_is_planned(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(8))
    read_only = canary(2, BLOCK_BYTES)
    read_only.flags.writeable = False
    for call in (
        lambda: ns.put_async(keys, canary(1, BLOCK_BYTES)),
        lambda: ns.get_async(keys, canary(3, BLOCK_BYTES)),
        lambda: ns.get_async(keys, read_only),
        lambda: ns.put_async(keys, canary(2, BLOCK_BYTES), timeout_s=-1),
        lambda: ns.prefetch(np.zeros((2, 15), dtype=np.uint8)),
    ):
        with pytest.raises(kvtier.UsageError):
            call()
    assert store.poll() == []
    assert store.stats()["jobs"]["ended"] == 0  # type: ignore[index]


def test_report_a2_a_cancelled_put_leaves_nothing_or_whole_blocks(open_store: OpenStore) -> None:
    store = open_store(host_bytes="64MiB")
    ns = namespace_of(store, block_bytes=1 * MIB)
    num_cancelled = 0
    for turn in range(20):
        keys = ns.keys(range(1000 * turn, 1000 * turn + 4 * 12))
        data = payloads(keys, turn, ns.block_bytes)
        whole = data.copy()
        job = ns.put_async(keys, data)
        assert job.cancel(wait=True) is True
        data[:] = 0xEE
        outcomes = job.result.outcomes
        assert set(outcomes) <= {Outcome.DONE, Outcome.CANCELLED}
        num_cancelled += outcomes.count(Outcome.CANCELLED)
        out = canary(len(keys), ns.block_bytes)
        got = ns.get(keys, out)
        assert got.num_blocks == job.result.num_accepted
        np.testing.assert_array_equal(out[: got.num_blocks], whole[: got.num_blocks])
        store.clear()
    assert num_cancelled > 0


def test_report_g5_poll_lists_the_job_that_ended_first() -> None:
    simulated = SimulatedStore(1, host_bytes=4 * MIB, disk_bytes=64 * MIB)
    store = simulated.store
    ns = namespace_of(store)
    keys = ns.keys(range(4 * 20))
    data = payloads(keys, 0, BLOCK_BYTES)
    ns.put(keys, data)
    store.flush()
    store.clear(["host"])
    assert ns.put(keys[:5], data[:5]).num_accepted == 5
    hot = ns.keys(range(1000, 1020))
    ns.put(hot, payloads(hot, 0, BLOCK_BYTES))
    store.flush()
    simulated.world.set_stalled(True)
    slow_out, fast_out = canary(20, BLOCK_BYTES), canary(5, BLOCK_BYTES)
    slow = ns.get_async(keys, slow_out)
    fast = ns.get_async(hot, fast_out)
    assert fast.wait(1).num_blocks == 5
    np.testing.assert_array_equal(fast_out, payloads(hot, 0, BLOCK_BYTES))
    assert store.poll() == [fast]
    assert not slow.done()
    with pytest.raises(kvtier.UsageError, match="not ended"):
        _ = slow.result
    with pytest.raises(kvtier.TimeoutError):
        slow.wait(0.1)
    with pytest.raises(TimeoutError):
        slow.wait(0)
    simulated.world.set_stalled(False)
    assert slow.wait(5).num_blocks == 20
    np.testing.assert_array_equal(slow_out, data)
    assert store.poll() == [slow]
    assert store.poll() == []
    simulated.close()


def test_a_cancelled_get_gives_its_buffer_back(open_store: OpenStore) -> None:
    simulated = SimulatedStore(2, host_bytes=4 * MIB, disk_bytes=64 * MIB)
    ns = namespace_of(simulated.store)
    keys = ns.keys(range(4 * 20))
    ns.put(keys, payloads(keys, 0, BLOCK_BYTES))
    simulated.store.flush()
    simulated.store.clear(["host"])
    simulated.world.set_stalled(True)
    out = canary(20, BLOCK_BYTES)
    job = ns.get_async(keys, out, prefix=False)
    assert job.cancel() is False  # It only asks.
    assert job.cancel(wait=True, timeout_s=1) is True
    assert job.result.outcomes == [Outcome.CANCELLED] * 20
    simulated.world.set_stalled(False)
    assert ns.lookup(keys).num_blocks == 20
    np.testing.assert_array_equal(out, canary(20, BLOCK_BYTES))
    simulated.close()


def test_report_g10_a_thousand_dropped_jobs_cost_nothing(open_store: OpenStore) -> None:
    store = open_store(host_bytes="16MiB")
    ns = namespace_of(store, block_bytes=4096)
    buffers: list[weakref.ref[object]] = []
    for index in range(1000):
        key = ns.keys(range(4 * index, 4 * index + 4))
        data = payloads(key, 0, 4096)
        buffers.append(weakref.ref(data))
        ns.put_async(key, data, chain=False)
        del data
    last = ns.keys(range(4 * 5000, 4 * 5001))
    ns.put_async(last, payloads(last, 0, 4096)).wait(30)
    while store.stats()["jobs"]["unfinished"]:  # type: ignore[index]
        pass
    store.stats()  # Any call lets go of the buffers of jobs that ended.
    gc.collect()
    assert all(buffer() is None for buffer in buffers)
    # Nothing is held any more: a put gets the whole tier.
    keys = ns.keys(range(100_000, 100_000 + 4 * 3500))
    assert ns.put(keys, payloads(keys, 0, 4096)).num_accepted == len(keys)
    assert len(store.poll()) == 1001


def test_buffers_live_as_long_as_the_core_needs_them() -> None:
    simulated = SimulatedStore(3, host_bytes=4 * MIB, disk_bytes=64 * MIB)
    ns = namespace_of(simulated.store)
    keys = ns.keys(range(4 * 20))
    data = payloads(keys, 0, BLOCK_BYTES)
    held = weakref.ref(data)
    # In the simulation nothing is copied before somebody waits.
    job = ns.put_async(keys, data)
    del data
    gc.collect()
    assert held() is not None
    assert job.wait(5).num_accepted == 20
    gc.collect()
    assert held() is None
    simulated.close()


def test_the_event_descriptor_is_readable_while_poll_lists(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(16))
    fd = store.event_fd
    assert fd == store.event_fd
    assert select.select([fd], [], [], 0)[0] == []
    job = ns.put_async(keys, payloads(keys, 0, BLOCK_BYTES))
    assert select.select([fd], [], [], 30)[0] == [fd]
    assert store.poll() == [job]
    assert select.select([fd], [], [], 0)[0] == []


def test_asyncio_waits_for_jobs(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(4 * 12))
    data = payloads(keys, 0, BLOCK_BYTES)

    async def put_all() -> list[object]:
        loop = asyncio.get_running_loop()
        ended: asyncio.Queue[object] = asyncio.Queue()
        loop.add_reader(store.event_fd, lambda: [ended.put_nowait(job) for job in store.poll()])
        jobs = [
            ns.put_async(keys[i : i + 3], data[i : i + 3], chain=False) for i in range(0, 12, 3)
        ]
        polled = [await asyncio.wait_for(ended.get(), 30) for _ in jobs]
        loop.remove_reader(store.event_fd)
        assert set(polled) == set(jobs)
        return polled

    assert len(asyncio.run(put_all())) == 4
    assert ns.get(keys, canary(12, BLOCK_BYTES)).num_blocks == 12


def test_report_g12_bogus_handles_are_clear_errors(store: kvtier.BlockStore) -> None:
    for bogus in (17, None, "job", object()):
        with pytest.raises(kvtier.UsageError):
            Job(store, bogus)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _core.Job()
    ns = namespace_of(store)
    keys = ns.keys(range(4))
    job = ns.put_async(keys, payloads(keys, 0, BLOCK_BYTES))
    job.wait(30)
    # Of a finished one everything may be asked again.
    assert job.cancel() is True
    assert job.cancel(wait=True, timeout_s=0) is True
    assert job.wait(0) is job.wait()
    with pytest.raises(kvtier.UsageError):
        job.wait("soon")  # type: ignore[arg-type]
    with pytest.raises(kvtier.UsageError):
        job.cancel(wait="no")  # type: ignore[arg-type]
    store.close()
    assert job.done()
    assert job.result.num_accepted == 1
    assert job.cancel() is True
    for call in (
        store.poll,
        lambda: store.event_fd,
        lambda: ns.prefetch(keys),
        lambda: ns.put_async(keys, canary(1, BLOCK_BYTES)),
        lambda: ns.get_async(keys, canary(1, BLOCK_BYTES)),
    ):
        with pytest.raises(kvtier.ClosedError):
            call()


def test_close_ends_unfinished_jobs(open_store: OpenStore, disk_folder: Path) -> None:
    store = open_store(disk_folder / "store", host_bytes="64MiB")
    ns = namespace_of(store, block_bytes=1 * MIB)
    keys = ns.keys(range(4 * 32))
    data = payloads(keys, 0, ns.block_bytes)
    jobs = [
        ns.put_async(keys[:16], data[:16]),
        ns.put_async(keys[16:], data[16:], parent=keys[15]),
        ns.get_async(keys, canary(32, ns.block_bytes)),
    ]
    waiter_results: list[object] = []
    waiter = threading.Thread(target=lambda: waiter_results.append(jobs[1].wait()))
    waiter.start()
    store.close()
    waiter.join(10)
    assert not waiter.is_alive()
    assert waiter_results == [jobs[1].result]
    assert all(job.done() for job in jobs)
    # Puts had their share of the time, and went to disk.
    again = open_store(disk_folder / "store")
    assert jobs[0].result.num_accepted == 16
    assert namespace_of(again, block_bytes=1 * MIB).lookup(keys).num_blocks >= 16


def test_prefetch_brings_blocks_to_host(open_store: OpenStore, disk_folder: Path) -> None:
    store = open_store(disk_folder / "store")
    ns = namespace_of(store)
    keys = ns.keys(range(4 * NUM_BLOCKS))
    data = payloads(keys, 0, BLOCK_BYTES)
    ns.put(keys, data)
    store.flush()
    store.clear(["host"])
    assert set(ns.lookup(keys).tiers.tolist()) == {2}
    assert ns.prefetch(keys) is None
    while store.stats()["jobs"]["unfinished"]:  # type: ignore[index]
        pass
    assert set(ns.lookup(keys).tiers.tolist()) == {1}
    assert store.poll() == []
    out = canary(NUM_BLOCKS, BLOCK_BYTES)
    assert ns.get(keys, out).num_blocks == NUM_BLOCKS
    np.testing.assert_array_equal(out, data)


def test_jobs_from_32_threads_with_overlapping_prefixes_a13(
    open_store: OpenStore, disk_folder: Path
) -> None:
    store = open_store(disk_folder / "store", host_bytes="2MiB", disk_bytes="6MiB")
    ns = namespace_of(store)
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            for turn in range(4):
                tokens = [*range(32), *(1000 + index * 7 + turn for _ in range(24))]
                tokens[0] = index % 4
                keys = ns.keys(tokens)
                wanted = payloads(keys, 0, BLOCK_BYTES)
                out = canary(len(keys), BLOCK_BYTES)
                offered = wanted.copy()
                get, put = ns.get_async(keys, out), ns.put_async(keys, offered)
                if turn % 2:
                    put.cancel(wait=True)
                put.wait(60)
                offered[:] = 0xEE
                got = get.wait(60)
                wanted_out = wanted.copy()
                wanted_out[got.num_blocks :] = canary(1, BLOCK_BYTES)[0]
                np.testing.assert_array_equal(out, wanted_out)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert store.stats()["jobs"]["unfinished"] == 0  # type: ignore[index]
    assert store.stats()["tiers"]["disk"]["corrupt"] == 0  # type: ignore[index]
    # Each job is listed once, by whichever call.
    assert len(store.poll()) == 32 * 4 * 2
