"""The halves of a connector in one process: early starts of loads, and ends told early."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import vllm_engine  # noqa: F401
from half_setup import attach_tensors, make_engine
from test_worker import device_blocks, keys_of, load_spec, save_spec
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    TransferJob,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import (
    OffloadingConnectorWorker,
)
from vllm.v1.outputs import KVConnectorOutput

from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.joined_halves import JoinedHalves
from kvtier.adapters.vllm.worker import KvtierWorker


class Steps:
    """What vLLM does with the worker's half in a step, around what the other half does."""

    def __init__(self, engine: EngineStore) -> None:
        self.engine = engine
        self.worker = KvtierWorker(engine, loads_wait_for_steps=False)
        self.half: Any = OffloadingConnectorWorker.__new__(OffloadingConnectorWorker)
        spec: Any = SimpleNamespace(
            replicated_layout=False, config=SimpleNamespace(canonical_layout=False)
        )
        rest = (None,) * (OffloadingConnectorWorker.__init__.__code__.co_argcount - 2)
        self.half.__init__(spec, *rest)
        self.half.worker = self.worker
        self.halves = JoinedHalves(self.worker, self.half)
        self._next_job_id = 1

    def save(self, block_ids: list[int], first: int = 0) -> TransferJob:
        spec = save_spec(self.engine, keys_of(self.engine, len(block_ids), first))
        return TransferJob("s", device_blocks(block_ids), spec)

    def load(self, block_ids: list[int], num_stored: int | None = None) -> TransferJob:
        """num_stored: the keys after so many are of blocks that nobody saved."""
        keys = keys_of(self.engine, len(block_ids))
        if num_stored is not None:
            keys[num_stored:] ^= 0xFF
        return TransferJob("r", load_spec(self.engine, keys), device_blocks(block_ids))

    def plan_load(self, job: TransferJob) -> int:
        """The scheduler gave a load its blocks."""
        job_id, self._next_job_id = self._next_job_id, self._next_job_id + 1
        self.halves.start_load(job_id, job)
        return job_id

    def run(
        self,
        loads: dict[int, TransferJob] | None = None,
        saves: dict[int, TransferJob] | None = None,
        flush: set[int] | None = None,
        *,
        is_empty: bool = False,
    ) -> KVConnectorOutput:
        """Carries a step out and returns what it told."""
        self.halves.begin_step(is_empty=is_empty)
        metadata = OffloadingConnectorMetadata(
            load_jobs=loads or {}, store_jobs=saves or {}, jobs_to_flush=flush
        )
        self.half.handle_preemptions(metadata)
        self.half.start_kv_transfers(metadata)
        self.half.prepare_store_kv(metadata)
        _, received = self.half.get_finished(set())
        return KVConnectorOutput(
            finished_recving=received,
            invalid_block_ids=self.worker.take_failed_block_ids(),
            kv_connector_worker_meta=self.half.build_connector_worker_meta(),
        )

    def save_now(self, block_ids: list[int]) -> None:
        self.run(saves={100: self.save(block_ids)})
        self.run()
        self.worker.wait({100})
        self.halves.add_ended(KVConnectorOutput())
        assert not self.worker.has_transfers


@pytest.fixture
def engine() -> Iterator[EngineStore]:
    made = make_engine()
    yield made
    made.close()


@pytest.fixture
def tensors(engine: EngineStore) -> list[Any]:
    return attach_tensors(engine)


@pytest.fixture
def steps(engine: EngineStore, tensors: list[Any]) -> Steps:
    return Steps(engine)


def blocks_of(tensors: list[Any], block_ids: list[int]) -> list[bytes]:
    return [bytes(tensor[it].numpy()) for it in block_ids for tensor in tensors]


def test_a_load_starts_before_the_step_that_vllm_starts_it_with(
    steps: Steps, tensors: list[Any]
) -> None:
    saved = blocks_of(tensors, [3, 9])
    steps.save_now([3, 9])
    load = steps.load([20, 21])
    job_id = steps.plan_load(load)
    steps.worker.wait({job_id})
    assert blocks_of(tensors, [20, 21]) == saved
    # Nobody is told before vLLM knows of it: it would take the load for a save.
    output = KVConnectorOutput()
    steps.halves.add_ended(output)
    assert (output.finished_recving, output.kv_connector_worker_meta) == (None, None)
    steps.run({job_id: load})
    steps.halves.add_ended(output)
    assert output.finished_recving == {"r"}
    assert output.kv_connector_worker_meta.completed_jobs == {job_id: 1}


def test_what_ended_during_a_step_is_told_with_it_and_once(steps: Steps) -> None:
    steps.save_now([3])
    load = steps.load([20])
    job_id = steps.plan_load(load)
    steps.worker.wait({job_id})
    first = steps.run({job_id: load})
    assert first.finished_recving == set()
    steps.halves.add_ended(first)
    assert first.finished_recving == {"r"}
    second = steps.run()
    steps.halves.add_ended(second)
    assert second.finished_recving == set()
    assert second.kv_connector_worker_meta is None


def test_an_output_that_nobody_reads_holds_a_load_up_by_one_step(steps: Steps) -> None:
    steps.save_now([3])
    load = steps.load([20])
    job_id = steps.plan_load(load)
    steps.worker.wait({job_id})
    assert steps.run({job_id: load}).finished_recving == set()
    assert steps.run().finished_recving == {"r"}


def test_what_a_step_told_stays_told(steps: Steps) -> None:
    steps.save_now([3])
    load = steps.load([20])
    job_id = steps.plan_load(load)
    steps.worker.wait({job_id})
    steps.run({job_id: load})
    told = steps.run(saves={7: steps.save([5], first=5)})
    assert told.kv_connector_worker_meta.completed_jobs == {job_id: 1}
    steps.run()
    steps.worker.wait({7})
    steps.halves.add_ended(told)
    assert told.finished_recving == {"r"}
    assert told.kv_connector_worker_meta.completed_jobs == {job_id: 1, 7: 1}


def test_a_failed_load_is_told_only_where_its_blocks_are_named(steps: Steps) -> None:
    steps.save_now([3])
    load = steps.load([20, 21, 22], num_stored=1)
    job_id = steps.plan_load(load)
    steps.worker.wait({job_id})
    steps.worker.submit_load(job_id, load.src_spec, load.dst_spec)
    steps.half._load_jobs[job_id] = "r"
    output = KVConnectorOutput()
    steps.halves.add_ended(output)
    assert not output.finished_recving
    told = steps.run()
    assert told.finished_recving == {"r"}
    assert told.invalid_block_ids == {21, 22}
    assert steps.engine.failed_requests == {"r"}


def save_into(steps: Steps, *, is_submitted: bool) -> None:
    """Block 4 is being saved as the sixth block, or is about to be."""
    steps.run(saves={7: steps.save([4], first=5)})
    if is_submitted:
        steps.run()


@pytest.mark.parametrize("is_submitted", [False, True])
def test_a_load_waits_for_the_save_of_what_it_overwrites(
    is_submitted: bool, steps: Steps, tensors: list[Any], engine: EngineStore
) -> None:
    saved = blocks_of(tensors, [3])
    expected = blocks_of(tensors, [4])
    steps.save_now([3])
    save_into(steps, is_submitted=is_submitted)
    load = steps.load([4])
    job_id = steps.plan_load(load)
    assert blocks_of(tensors, [4]) == expected
    steps.run({job_id: load}, flush={7})
    steps.worker.wait({job_id})
    assert blocks_of(tensors, [4]) == saved
    assert read_back(steps, tensors, engine) == expected


def test_a_load_waits_for_the_last_saves_of_an_ended_request(
    steps: Steps, tensors: list[Any], engine: EngineStore
) -> None:
    saved = blocks_of(tensors, [3])
    expected = blocks_of(tensors, [4])
    steps.save_now([3])
    steps.halves.note_unsaved([4])
    load = steps.load([4])
    job_id = steps.plan_load(load)
    # vLLM chooses the save after the load, and flushes it before.
    steps.run({job_id: load}, saves={7: steps.save([4], first=5)}, flush={7})
    steps.worker.wait({job_id})
    assert blocks_of(tensors, [4]) == saved
    assert read_back(steps, tensors, engine) == expected
    # From the next step on the block is the load's.
    steps.run()
    steps.halves.add_ended(KVConnectorOutput())
    assert not steps.worker.has_transfers
    other = steps.load([4])
    steps.worker.wait({steps.plan_load(other)})
    assert steps.worker.has_transfers


def read_back(steps: Steps, tensors: list[Any], engine: EngineStore) -> list[bytes]:
    """Returns what was saved as the sixth block."""
    spec = load_spec(engine, keys_of(engine, 1, first=5), "again")
    steps.worker.submit_load(99, spec, device_blocks([30]))
    steps.worker.wait({99})
    steps.half._load_jobs[99] = "again"
    return blocks_of(tensors, [30])


def test_with_nothing_to_compute_a_load_is_waited_for(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps.save_now([3])
    waits: list[float] = []
    collecting = KvtierWorker.collecting

    def note(worker: KvtierWorker, wait_s: float) -> Any:
        waits.append(wait_s)
        return collecting(worker, wait_s)

    monkeypatch.setattr(KvtierWorker, "collecting", note)
    for is_empty in (True, True, False, True):
        steps.halves.add_ended(steps.run(is_empty=is_empty))
    assert [wait_s > 0 for wait_s in waits] == [False, True, False, False]


def test_loads_that_steps_may_write_to_start_with_the_step(engine: EngineStore) -> None:
    attach_tensors(engine)
    steps = Steps(engine)
    steps.worker = steps.half.worker = KvtierWorker(engine)
    steps.halves = JoinedHalves(steps.worker, steps.half)
    steps.save_now([3])
    steps.plan_load(steps.load([20]))
    assert not steps.worker.has_transfers
