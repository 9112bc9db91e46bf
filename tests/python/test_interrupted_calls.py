"""Calls that are interrupted after the core took the work: nothing goes on that nobody knows of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from payload import payloads
from simulated_store import MIB
from worker_process import NUM_RANKS, PART_BYTES, make_tensors, open_namespace

import kvtier
from kvtier import ArenaView, Outcome, PagedGeometry, PagedWorker, _core, planned_job

BLOCK_BYTES = 4 * MIB
NUM_BLOCKS = 16


class Interrupter:
    """Has a call done by `inner`, and then raises as if a signal had come."""

    def __init__(self, inner: Any, name: str) -> None:
        self._inner = inner
        self._name = name
        self.arguments: tuple[Any, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name != self._name:
            return getattr(self._inner, name)
        return self._call

    def _call(self, *arguments: Any) -> None:
        self.arguments = arguments
        getattr(self._inner, self._name)(*arguments)
        raise KeyboardInterrupt


def start_of(ns: kvtier.Namespace, what: str) -> Callable[[np.ndarray, np.ndarray], object]:
    if what == "put_async":
        return lambda keys, data: ns.put_async(keys, data)
    if what == "get_async":
        return lambda keys, data: ns.get_async(keys, data)
    if what == "save":
        # Rows of one tensor are the blocks.
        return lambda keys, data: ns.attach(data, PagedGeometry.from_tensors(data)).save(
            keys, range(NUM_BLOCKS), stream=None
        )
    return lambda keys, data: ns.attach(data, PagedGeometry.from_tensors(data)).load(
        keys, range(NUM_BLOCKS), stream=None
    )


@pytest.mark.parametrize("what", ["put_async", "get_async", "save", "load"])
def test_a_job_whose_call_was_interrupted_has_ended_when_the_caller_hears_of_it(what: str) -> None:
    with kvtier.open(host_bytes=96 * MIB) as store:
        ns = store.namespace(model="m", block_bytes=BLOCK_BYTES, block_tokens=4, fingerprint="f")
        keys = ns.keys(range(4 * NUM_BLOCKS))
        want = payloads(keys, 1, BLOCK_BYTES)
        if what in ("get_async", "load"):
            assert ns.put(keys, want).num_accepted == NUM_BLOCKS
        data = want.copy()
        table = store._jobs._jobs
        store._jobs._jobs = Interrupter(table, "setdefault")  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            start_of(ns, what)(keys, data)
        store._jobs._jobs = table
        data[:] = 0xEE  # The buffers are the caller's again.
        (job,) = store.poll()
        assert job.done()
        assert set(job.wait(0).outcomes) <= {Outcome.DONE, Outcome.CANCELLED, Outcome.MISS}
        assert (data == 0xEE).all()
        # What was stored is whole, from before the buffers were given back.
        out = np.zeros_like(want)
        num_blocks = ns.get(keys, out).num_blocks
        np.testing.assert_array_equal(out[:num_blocks], want[:num_blocks])


def test_a_call_that_is_refused_starts_no_job_and_says_why() -> None:
    with kvtier.open(host_bytes=8 * MIB, shared_arena=True) as store:
        core_job = _core.Job(store._core_store)
        assert not core_job.has_begun()
        for call in (core_job.is_ended, core_job.cancel, lambda: core_job.wait(0)):
            with pytest.raises(kvtier.UsageError, match="no job was started"):
                call()
        ns = store.namespace(model="m", block_bytes=4096, block_tokens=4, fingerprint="f")
        keys = ns.keys(range(4))
        job = ns.put_async(keys, payloads(keys, 1, 4096))
        job.wait(10)
        with pytest.raises(kvtier.UsageError, match="started before"):
            store._core_store.plan_save(
                job._core_job, 0, keys, (bytes(16), (4096,), 1), None, True, 0, 1.0
            )


def make_worker(
    view: ArenaView, ns: kvtier.Namespace, tensors: object, geometry: PagedGeometry
) -> PagedWorker:
    return PagedWorker(
        view, tensors, geometry, namespace_id=ns.id, part_bytes=ns.part_bytes, parts=0, rank=0
    )


def test_a_plan_whose_submit_was_interrupted_is_no_longer_carried_out() -> None:
    with kvtier.open(host_bytes=96 * MIB, shared_arena=True) as store:
        ns = store.namespace(model="m", block_bytes=BLOCK_BYTES, block_tokens=4, fingerprint="f")
        rows = np.zeros((NUM_BLOCKS, BLOCK_BYTES), dtype=np.uint8)
        job = ns.plan_save(ns.keys(range(4 * NUM_BLOCKS)), num_ranks=1)
        (plan,) = job.take_plans()
        with ArenaView.open(store.arena_handle()) as view:
            worker = make_worker(view, ns, rows, PagedGeometry.from_tensors(rows))
            interrupter = Interrupter(worker._core_worker, "submit")
            worker._core_worker = interrupter  # type: ignore[assignment]
            with pytest.raises(KeyboardInterrupt):
                worker.submit(plan, range(NUM_BLOCKS))
            core_job = interrupter.arguments[0]
            assert core_job.has_begun()
            assert core_job.is_ended()
            # And by no other worker of the rank: what the store is told now is the truth.
            twin = make_worker(view, ns, rows, PagedGeometry.from_tensors(rows))
            with pytest.raises(kvtier.UsageError, match="submitted before"):
                twin.submit(plan, range(NUM_BLOCKS))
            assert store.finish_plan(kvtier.PlanResult.failed(plan, 0, "interrupted"))
        assert job.wait(10).outcomes == [Outcome.FAILED] * NUM_BLOCKS


def test_plans_that_an_interrupt_kept_from_the_caller_can_be_taken_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, ns = open_namespace()
    job = ns.plan_save(ns.keys(range(64)), num_ranks=NUM_RANKS)

    def interrupt(**fields: object) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(planned_job, "BlockPlan", interrupt)
        with pytest.raises(KeyboardInterrupt):
            job.take_plans()
    assert not job.are_plans_exhausted
    core_job = job._core_job
    job._core_job = Interrupter(core_job, "take_plans")  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        job.take_plans()
    job._core_job = core_job
    # The core cannot hand out what does not fit into its list either.
    with pytest.raises(TypeError):
        core_job.take_plans(0.0, ())  # type: ignore[arg-type]
    (plan,) = job.take_plans()
    assert plan.num_blocks == 4
    assert job.take_plans() == []
    # One that is put back after its job was cancelled ends with it.
    job.cancel()
    assert not job.done()
    core_job.put_back_plans([plan.plan_id])
    assert job.wait(10).outcomes == [Outcome.CANCELLED] * 4
    store.close()


def test_a_worker_that_cuts_blocks_otherwise_refuses_their_plans() -> None:
    store, ns = open_namespace()
    with ArenaView.open(store.arena_handle()) as view:
        tensors = make_tensors(1)
        worker = make_worker(view, ns, tensors, PagedGeometry.from_tensors(tensors))
        job = ns.plan_save(ns.keys(range(64)), num_ranks=1)
        (plan,) = job.take_plans()
        assert plan.part_bytes == ns.part_bytes == (PART_BYTES, PART_BYTES)
        other = replace(plan, part_bytes=(PART_BYTES - 16, PART_BYTES + 16))
        with pytest.raises(
            kvtier.UsageError, match=rf"\({PART_BYTES - 16}, .*Namespace.part_bytes"
        ):
            worker.submit(other, [0, 1, 2, 3])
        assert store.finish_plan(worker.submit(plan, [0, 1, 2, 3]).wait(10))
    store.close()
