"""The worker's half: bytes that come back, and the names of blocks that do not."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import vllm_engine  # noqa: F401
from half_setup import attach_tensors, hash_of, make_engine
from vllm.v1.kv_offload.base import GPULoadStoreSpec

from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.transfer_specs import GroupSave, LoadSpec, SaveSpec
from kvtier.adapters.vllm.worker import KvtierWorker


@pytest.fixture
def engine() -> Iterator[EngineStore]:
    made = make_engine()
    yield made
    made.close()


@pytest.fixture
def tensors(engine: EngineStore) -> list[Any]:
    return attach_tensors(engine)


@pytest.fixture
def worker(engine: EngineStore, tensors: list[Any]) -> KvtierWorker:
    return KvtierWorker(engine)


def device_blocks(block_ids: list[int]) -> GPULoadStoreSpec:
    return GPULoadStoreSpec(block_ids, group_sizes=[len(block_ids)], block_indices=[0])


def keys_of(engine: EngineStore, num_blocks: int, first: int = 0) -> Any:
    assert engine.namespace is not None
    return np.stack([engine.namespace.key(hash_of(it)) for it in range(first, first + num_blocks)])


def save_spec(engine: EngineStore, keys: Any, parent: bytes | None = None) -> SaveSpec:
    """What the scheduler's half says of a save in an engine with one group."""
    return SaveSpec((GroupSave(keys, parent),), "s", engine.generation)


def load_spec(engine: EngineStore, keys: Any, request_id: str = "r") -> LoadSpec:
    return LoadSpec((keys,), request_id, engine.generation)


def finish(worker: KvtierWorker, job_ids: set[int]) -> list[Any]:
    worker.wait(job_ids)
    return worker.get_finished()


def save(worker: KvtierWorker, engine: EngineStore, block_ids: list[int]) -> None:
    spec = save_spec(engine, keys_of(engine, len(block_ids)))
    assert worker.submit_store(1, device_blocks(block_ids), spec)
    (ended,) = finish(worker, {1})
    assert (ended.job_id, ended.success) == (1, True)


def test_blocks_come_back_into_other_places_byte_by_byte(
    worker: KvtierWorker, engine: EngineStore, tensors: list[Any]
) -> None:
    before = [tensor.clone() for tensor in tensors]
    save(worker, engine, [3, 9, 4])
    spec = load_spec(engine, keys_of(engine, 3))
    assert worker.submit_load(2, spec, device_blocks([20, 8, 31]))
    (ended,) = finish(worker, {2})
    assert ended.job_id == 2
    assert ended.transfer_size == 3 * 4096
    for tensor, old in zip(tensors, before, strict=True):
        for source, target in ((3, 20), (9, 8), (4, 31)):
            assert bytes(tensor[target].numpy()) == bytes(old[source].numpy())
        untouched = [it for it in range(len(tensor)) if it not in {20, 8, 31}]
        assert (tensor[untouched] == old[untouched]).all()
    assert worker.take_failed_block_ids() == set()


def test_a_failed_load_names_exactly_its_blocks(
    worker: KvtierWorker, engine: EngineStore, tensors: list[Any]
) -> None:
    save(worker, engine, [3, 9])
    assert worker.submit_load(2, load_spec(engine, keys_of(engine, 4)), device_blocks([5, 6, 7, 8]))
    (ended,) = finish(worker, {2})
    assert ended.success
    assert worker.take_failed_block_ids() == {7, 8}
    assert worker.take_failed_block_ids() == set()
    assert engine.failed_requests == {"r"}


def test_a_load_that_cannot_be_started_names_all_its_blocks(
    worker: KvtierWorker, engine: EngineStore
) -> None:
    keys = keys_of(engine, 2)
    assert engine.store is not None
    engine.store.close()
    assert worker.submit_load(2, load_spec(engine, keys), device_blocks([5, 6]))
    (ended,) = finish(worker, {2})
    assert (ended.success, ended.transfer_size) == (True, 0)
    assert worker.take_failed_block_ids() == {5, 6}


def test_a_save_that_fails_costs_nobody_anything(worker: KvtierWorker, engine: EngineStore) -> None:
    unknown = np.full(16, 7, dtype=np.uint8).tobytes()
    spec = save_spec(engine, keys_of(engine, 2, first=5), unknown)
    assert worker.submit_store(1, device_blocks([1, 2]), spec)
    (ended,) = finish(worker, {1})
    assert (ended.success, ended.transfer_size) == (True, 0)
    assert worker.take_failed_block_ids() == set()
    assert engine.failed_requests == set()


def test_what_was_planned_before_a_reset_is_not_carried_out(
    worker: KvtierWorker, engine: EngineStore
) -> None:
    save(worker, engine, [3])
    late_save = save_spec(engine, keys_of(engine, 1, first=8))
    late_load = load_spec(engine, keys_of(engine, 1))
    engine.reset()
    assert worker.submit_store(2, device_blocks([4]), late_save)
    assert worker.submit_load(3, late_load, device_blocks([5]))
    assert {it.job_id for it in finish(worker, {2, 3})} == {2, 3}
    assert worker.take_failed_block_ids() == {5}
    assert engine.namespace is not None
    assert engine.namespace.lookup(late_save.groups[0].keys).num_blocks == 0


def test_a_reset_ends_what_is_under_way(worker: KvtierWorker, engine: EngineStore) -> None:
    save(worker, engine, [3, 9])
    assert worker.submit_load(2, load_spec(engine, keys_of(engine, 2)), device_blocks([5, 6]))
    engine.reset()
    (ended,) = worker.get_finished()
    assert ended.job_id == 2
    assert worker.take_failed_block_ids() == {5, 6}


def test_transfers_are_told_once_and_only_when_they_ended(
    worker: KvtierWorker, engine: EngineStore
) -> None:
    save(worker, engine, [1])
    assert worker.get_finished() == []
    worker.wait({1, 99})


def test_after_shutdown_nothing_is_under_way(worker: KvtierWorker, engine: EngineStore) -> None:
    worker.submit_store(1, device_blocks([1]), save_spec(engine, keys_of(engine, 1)))
    worker.shutdown()
    assert worker.get_finished() == []
    worker.shutdown()
