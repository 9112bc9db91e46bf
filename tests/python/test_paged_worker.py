"""One store, worker processes over its arena: right bytes on every rank, or a clear refusal."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from worker_process import (
    EMPTY,
    MIB,
    NUM_RANKS,
    PART_BYTES,
    Worker,
    carry_out,
    make_tensors,
    open_namespace,
    rows_of,
    setup_of,
    start_workers,
)

import kvtier
from kvtier import ArenaView, Outcome, PagedGeometry, PagedWorker, PlanResult


@pytest.fixture
def in_process() -> Iterator[tuple[kvtier.BlockStore, kvtier.Namespace, ArenaView]]:
    """A store with a view of it in the same process, for what needs no other."""
    store, ns = open_namespace()
    with ArenaView.open(store.arena_handle()) as view:
        yield store, ns, view
    store.close()


def make_worker(
    view: ArenaView, ns: kvtier.Namespace, tensors: list[np.ndarray], part: int, **changes: object
) -> PagedWorker:
    named: dict[str, object] = {
        "namespace_id": ns.id,
        "part_bytes": ns.part_bytes,
        "parts": part,
        "rank": part,
        **changes,
    }
    return PagedWorker(view, tensors, PagedGeometry.from_tensors(tensors), **named)  # type: ignore[arg-type]


def test_two_ranks_save_their_parts_and_load_them_into_other_rows_and_after_a_restart(
    tmp_path: Path,
) -> None:
    block_ids, others = [3, 1, 4, 15, 9, 2, 6, 5], [20, 21, 22, 23, 24, 25, 26, 27]
    want = [rows_of(make_tensors(100 + rank), block_ids) for rank in range(NUM_RANKS)]
    store, ns = open_namespace(tmp_path)
    keys = ns.keys(range(16 * 10))
    workers = start_workers(store, ns)
    saved = carry_out(store, ns.plan_save(keys[:8], num_ranks=NUM_RANKS), workers, block_ids)
    assert isinstance(saved, kvtier.PutResult)
    assert saved.num_accepted == 8
    out = np.zeros((8, NUM_RANKS * PART_BYTES), dtype=np.uint8)
    assert ns.get(keys[:8], out).num_blocks == 8
    np.testing.assert_array_equal(out, np.concatenate(want, axis=1))

    for worker in workers:
        worker.ask("clear")
    loaded = carry_out(store, ns.plan_load(keys, num_ranks=NUM_RANKS), workers, [*others, 30, 31])
    assert isinstance(loaded, kvtier.PlannedLoadResult)
    assert loaded.num_blocks == 8
    assert loaded.outcomes[8:] == [Outcome.MISS] * 2
    assert len(loaded.undefined_indices) == 0
    for rank, worker in enumerate(workers):
        np.testing.assert_array_equal(worker.rows(others), want[rank])
        assert (worker.rows([*block_ids, 30, 31]) == EMPTY).all()
        worker.stop()
    store.flush()
    store.close()

    store, ns = open_namespace(tmp_path)
    workers = start_workers(store, ns)
    cold = carry_out(store, ns.plan_load(keys[:8], num_ranks=NUM_RANKS), workers, others)
    assert isinstance(cold, kvtier.PlannedLoadResult)
    assert cold.num_blocks == 8
    assert store.stats()["tiers"]["disk"]["hits"] == 8  # type: ignore[index, call-overload]
    for rank, worker in enumerate(workers):
        np.testing.assert_array_equal(worker.rows(others), want[rank])
        worker.stop()
    store.close()


def test_a_worker_that_is_killed_ends_its_moves_and_the_next_request_is_right() -> None:
    store, ns = open_namespace()
    keys = ns.keys(range(16 * 4))
    block_ids = [8, 9, 10, 11]
    workers = start_workers(store, ns)
    job = ns.plan_save(keys, num_ranks=NUM_RANKS)
    (plan,) = job.take_plans()
    workers[1].send("die_at", plan, block_ids)
    workers[1].process.join(20)
    assert workers[1].process.exitcode == -9
    with pytest.raises(kvtier.TimeoutError):
        job.wait(0.05)
    assert store.abandon_rank(1) == 1
    with pytest.raises(kvtier.TimeoutError):
        job.wait(0.05)  # Rank 0 may still be reading or writing.
    first = workers[0].ask("plan", plan, block_ids)
    assert isinstance(first, PlanResult)
    assert store.finish_plan(first)
    assert job.wait(10).outcomes == [Outcome.FAILED] * 4
    assert ns.lookup(keys).num_blocks == 0
    assert not store.finish_plan(first)

    # Another process takes its place; what was on the way to the dead one is refused there.
    workers[1].stop()
    workers[1] = Worker(setup_of(store, ns, 1)).wait_ready()
    stale = workers[1].ask("plan", plan, block_ids)
    assert isinstance(stale, PlanResult)
    assert stale.status == "failed"
    assert "before a rank was abandoned" in stale.message
    saved = carry_out(store, ns.plan_save(keys, num_ranks=NUM_RANKS), workers, block_ids)
    assert isinstance(saved, kvtier.PutResult)
    assert saved.num_accepted == 4
    rows = [0, 1, 2, 3]
    carry_out(store, ns.plan_load(keys, num_ranks=NUM_RANKS), workers, rows)
    for rank, worker in enumerate(workers):
        want = rows_of(make_tensors(100 + rank), block_ids)
        np.testing.assert_array_equal(worker.rows(rows), want)
        worker.stop()
    store.close()


def test_plans_answers_and_handles_can_be_pickled(
    in_process: tuple[kvtier.BlockStore, kvtier.Namespace, ArenaView],
) -> None:
    store, ns, view = in_process
    tensors = [make_tensors(rank) for rank in range(NUM_RANKS)]
    workers = [make_worker(view, ns, tensors[rank], rank) for rank in range(NUM_RANKS)]
    job = ns.plan_save(ns.keys(range(64)), num_ranks=NUM_RANKS)
    (plan,) = (pickle.loads(pickle.dumps(it)) for it in job.take_plans())
    assert plan.num_blocks == 4
    for worker in workers:
        answer = worker.submit(plan, [5, 6, 7, 8]).wait(10)
        assert store.finish_plan(pickle.loads(pickle.dumps(answer)))
    assert job.wait(10).num_accepted == 4
    assert job in store.poll()
    handle = pickle.loads(pickle.dumps(store.arena_handle()))
    assert handle == store.arena_handle()
    assert handle.places[0][0].hex() not in repr(handle)


def test_a_part_that_is_wrong_in_the_arena_is_named_and_its_block_goes(
    in_process: tuple[kvtier.BlockStore, kvtier.Namespace, ArenaView],
) -> None:
    store, ns, view = in_process
    tensors = [make_tensors(rank) for rank in range(NUM_RANKS)]
    workers = [make_worker(view, ns, tensors[rank], rank) for rank in range(NUM_RANKS)]
    keys = ns.keys(range(64))
    save = ns.plan_save(keys, num_ranks=NUM_RANKS)
    (plan,) = save.take_plans()
    for worker in workers:
        assert store.finish_plan(worker.submit(plan, [0, 1, 2, 3]).wait(10))
    assert save.wait(10).num_accepted == 4
    load = ns.plan_load(keys, num_ranks=NUM_RANKS, prefix=False)
    (plan,) = load.take_plans()
    # As a stray write of a worker would: part 1 of the block at 2 is overwritten.
    fd = os.open(f"/proc/{os.getpid()}/fd/{store.arena_handle().places[0][3]}", os.O_RDWR)
    os.pwrite(fd, b"stray", int(plan.slot_offsets[2]) + PART_BYTES + 10)
    os.close(fd)
    results = [worker.submit(plan, [10, 11, 12, 13]).wait(10) for worker in workers]
    assert [it.status for it in results] == ["done", "corrupt"]
    assert results[1].undefined_indices.tolist() == [2]
    assert all(store.finish_plan(it) for it in results)
    done = load.wait(10)
    assert done.outcomes == [Outcome.DONE, Outcome.DONE, Outcome.CORRUPT, Outcome.DONE]
    assert done.undefined_indices.tolist() == [2]
    assert ns.lookup(keys).num_blocks == 2


def test_a_plan_is_carried_out_once_and_only_where_it_belongs(
    in_process: tuple[kvtier.BlockStore, kvtier.Namespace, ArenaView],
) -> None:
    store, ns, view = in_process
    tensors = make_tensors(1)
    worker = make_worker(view, ns, tensors, 0)
    job = ns.plan_save(ns.keys(range(64)), num_ranks=1)
    (plan,) = job.take_plans()
    assert job.take_plans() == []
    assert job.are_plans_exhausted
    with pytest.raises(kvtier.UsageError, match="row of each key"):
        worker.submit(plan, [0, 1])
    with pytest.raises(kvtier.UsageError, match="block_id=99"):
        worker.submit(plan, [0, 1, 2, 99])
    with pytest.raises(kvtier.UsageError, match="slot outside the arena"):
        worker.submit(replace(plan, slot_offsets=plan.slot_offsets + np.uint64(1 << 40)), [0] * 4)
    with pytest.raises(kvtier.UsageError, match="another store"):
        worker.submit(replace(plan, arena_id=bytes(16)), [0] * 4)
    with pytest.raises(kvtier.UsageError, match="namespace"):
        worker.submit(replace(plan, namespace_id=bytes(16)), [0] * 4)
    with pytest.raises(kvtier.UsageError, match="arrays do not fit"):
        worker.submit(replace(plan, slot_offsets=plan.slot_offsets[:2]), [0] * 4)
    stranger = make_worker(view, ns, tensors, 1)
    with pytest.raises(kvtier.UsageError, match="1 ranks, this worker is rank 1"):
        stranger.submit(plan, [0, 1, 2, 3])
    with pytest.raises(kvtier.UsageError, match="expected a BlockPlan"):
        worker.submit("plan", [0])  # type: ignore[arg-type]
    answer = worker.submit(plan, [0, 1, 2, 3]).wait(10)
    with pytest.raises(kvtier.UsageError, match="submitted before"):
        worker.submit(plan, [0, 1, 2, 3])
    assert store.finish_plan(answer)
    assert not store.finish_plan(answer)
    # Part 1 is nobody's: that is no block.
    assert job.wait(10).outcomes == [Outcome.FAILED] * 4


def test_a_load_must_not_name_a_row_twice(
    in_process: tuple[kvtier.BlockStore, kvtier.Namespace, ArenaView],
) -> None:
    store, ns, view = in_process
    data = np.arange(2 * NUM_RANKS * PART_BYTES, dtype=np.uint32).astype(np.uint8)
    keys = ns.keys(range(32))
    assert ns.put(keys, data).num_accepted == 2
    job = ns.plan_load(keys, num_ranks=1)
    (plan,) = job.take_plans()
    worker = make_worker(view, ns, make_tensors(1), 0)
    with pytest.raises(kvtier.UsageError, match="twice"):
        worker.submit(plan, [4, 4])
    assert store.finish_plan(PlanResult.failed(plan, 0, "a row twice"))
    assert job.wait(10).outcomes == [Outcome.FAILED, Outcome.MISS]


def test_what_does_not_fit_a_worker_is_refused_with_both_values(
    in_process: tuple[kvtier.BlockStore, kvtier.Namespace, ArenaView],
) -> None:
    _, ns, view = in_process
    tensors = make_tensors(1)
    for changes, text in (
        ({"parts": 2}, "there is no part 2"),
        ({"parts": [0, 1]}, f"have {2 * PART_BYTES} bytes"),
        ({"parts": [1, 0]}, "several in a row"),
        ({"parts": []}, "several in a row"),
        ({"namespace_id": "abc"}, "32 hexadecimal digits"),
        ({"rank": -1}, "from 0 on"),
    ):
        with pytest.raises(kvtier.UsageError, match=text):
            make_worker(view, ns, tensors, 0, **changes)
    with pytest.raises(kvtier.UsageError, match="ArenaView"):
        make_worker("view", ns, tensors, 0)  # type: ignore[arg-type]


def test_a_handle_of_something_else_or_of_a_closed_store_is_a_clear_error() -> None:
    store, _ = open_namespace()
    handle = store.arena_handle()
    arena_id, num_bytes, process_id, fd, socket_number = handle.places[0]
    wrong_id = (bytes(16), num_bytes, process_id, fd, socket_number)
    with pytest.raises(kvtier.UsageError, match="another arena"):
        ArenaView.open(replace(handle, places=(wrong_id,)))
    with Path(__file__).open("rb") as foreign:
        no_arena = (arena_id, num_bytes, os.getpid(), foreign.fileno(), bytes(16))
        with pytest.raises((kvtier.UsageError, kvtier.TierIOError)):
            ArenaView.open(replace(handle, places=(no_arena,)))
    # Of a process that is not there, or that this one may not look at.
    with pytest.raises(kvtier.TierIOError, match=r"/proc/1073741824/fd.*same user"):
        ArenaView.open(replace(handle, places=((arena_id, num_bytes, 1 << 30, fd, bytes(16)),)))
    by_descriptor = (arena_id, num_bytes, process_id, fd, bytes(16))
    with ArenaView.open(replace(handle, places=(by_descriptor,))) as view:
        assert view.num_bytes == num_bytes
    store.close()
    with pytest.raises((kvtier.TierIOError, kvtier.UsageError)):
        ArenaView.open(handle)
    with pytest.raises(kvtier.ClosedError):
        store.arena_handle()
    with pytest.raises(kvtier.UsageError, match="arena_handle"):
        ArenaView.open("handle")  # type: ignore[arg-type]


def test_a_store_that_is_not_shared_says_how_to_share_it() -> None:
    with kvtier.open(host_bytes=4 * MIB) as store:
        ns = store.namespace(model="m", block_bytes=4096, fingerprint="f")
        for call in (store.arena_handle, lambda: ns.plan_save(ns.keys(range(16)), num_ranks=1)):
            with pytest.raises(kvtier.ConfigError, match="shared_arena=True"):
                call()
        with pytest.raises(kvtier.UsageError, match="num_ranks"):
            ns.plan_load(ns.keys(range(16)), num_ranks=0)


def test_close_does_not_wait_for_workers_and_their_answers_come_too_late() -> None:
    store, ns = open_namespace()
    view = ArenaView.open(store.arena_handle())
    worker = make_worker(view, ns, make_tensors(1), 0)
    job = ns.plan_save(ns.keys(range(64)), num_ranks=1)
    (plan,) = job.take_plans()
    store.close()
    assert job.done()
    assert job.wait().outcomes == [Outcome.CANCELLED] * 4
    # The arena is the worker's now: what it still writes is of no consequence.
    answer = worker.submit(plan, [0, 1, 2, 3]).wait(10)
    with pytest.raises(kvtier.ClosedError):
        store.finish_plan(answer)
    with pytest.raises(kvtier.ClosedError):
        store.abandon_rank(0)
    view.close()
    view.close()
    with pytest.raises(kvtier.ClosedError, match="view of the arena is closed"):
        worker.submit(plan, [0, 1, 2, 3])
    with pytest.raises(kvtier.ClosedError):
        make_worker(view, ns, make_tensors(1), 0)


def test_a_forked_child_has_neither_view_nor_store(
    in_process: tuple[kvtier.BlockStore, kvtier.Namespace, ArenaView],
) -> None:
    store, ns, view = in_process
    worker = make_worker(view, ns, make_tensors(1), 0)
    job = ns.plan_save(ns.keys(range(64)), num_ranks=1)
    (plan,) = job.take_plans()
    fd = store.arena_handle().places[0][3]
    child = os.fork()
    if child == 0:
        num_refused = 0
        for call in (
            lambda: worker.submit(plan, [0, 1, 2, 3]),
            lambda: job.take_plans(),
            store.arena_handle,
        ):
            try:
                call()
            except kvtier.ClosedError:
                num_refused += 1
        try:
            os.fstat(fd)
        except OSError:
            num_refused += 1
        del job, worker, plan
        os._exit(num_refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
