"""The worker's half in an engine with several groups."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import vllm_engine  # noqa: F401
from group_setup import WINDOW_LAYER_BYTES, attach_groups, make_group_engine
from half_setup import LAYER_BYTES, hash_of
from vllm.v1.kv_offload.base import GPULoadStoreSpec

from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.request_chain import NO_KEYS
from kvtier.adapters.vllm.transfer_specs import GroupSave, LoadSpec, SaveSpec
from kvtier.adapters.vllm.worker import KvtierWorker


@pytest.fixture
def engine() -> Iterator[EngineStore]:
    made = make_group_engine()
    yield made
    made.close()


@pytest.fixture
def tensors(engine: EngineStore) -> list[Any]:
    return attach_groups(engine)


@pytest.fixture
def worker(engine: EngineStore, tensors: list[Any]) -> KvtierWorker:
    return KvtierWorker(engine)


def device_blocks(*groups: list[int]) -> GPULoadStoreSpec:
    joined = [block_id for group in groups for block_id in group]
    sizes = [len(group) for group in groups]
    return GPULoadStoreSpec(joined, group_sizes=sizes, block_indices=[0] * len(groups))


def keys_of(engine: EngineStore, group_index: int, *numbers: int) -> Any:
    namespace = engine.groups[group_index].namespace
    return np.stack([namespace.key(hash_of(it)) for it in numbers])


def finish(worker: KvtierWorker, job_id: int) -> Any:
    worker.wait({job_id})
    (ended,) = worker.get_finished()
    assert (ended.job_id, ended.success) == (job_id, True)
    return ended


def save_both(worker: KvtierWorker, engine: EngineStore) -> None:
    """Saves blocks 3 and 9 of the first group and 4, 11 and 12 of the second."""
    saves = (
        GroupSave(keys_of(engine, 0, 0, 1), None),
        GroupSave(keys_of(engine, 1, 1, 5, 6), None, is_chain=False),
    )
    worker.submit_store(
        1, device_blocks([3, 9], [4, 11, 12]), SaveSpec(saves, "s", engine.generation)
    )
    assert finish(worker, 1).transfer_size == 2 * sum(LAYER_BYTES) + 3 * sum(WINDOW_LAYER_BYTES)


def test_each_group_s_blocks_come_back_byte_by_byte_and_no_further(
    worker: KvtierWorker, engine: EngineStore, tensors: list[Any]
) -> None:
    before = [tensor.clone() for tensor in tensors]
    save_both(worker, engine)
    keys = (keys_of(engine, 0, 0, 1), keys_of(engine, 1, 5, 6))
    worker.submit_load(2, LoadSpec(keys, "r", 0), device_blocks([20, 8], [31, 5]))
    finish(worker, 2)
    for tensor, old, window_bytes in zip(tensors, before, WINDOW_LAYER_BYTES, strict=True):
        for source, target, page_bytes in (
            (3, 20, tensor.shape[1]),
            (9, 8, tensor.shape[1]),
            (11, 31, window_bytes),
            (12, 5, window_bytes),
        ):
            assert (tensor[target, :page_bytes] == old[source, :page_bytes]).all()
            assert (tensor[target, page_bytes:] == old[target, page_bytes:]).all()
        untouched = [it for it in range(len(tensor)) if it not in {20, 8, 31, 5}]
        assert (tensor[untouched] == old[untouched]).all()
    assert worker.take_failed_request_ids() == set()


def test_a_transfer_may_have_blocks_of_one_group_only(
    worker: KvtierWorker, engine: EngineStore, tensors: list[Any]
) -> None:
    save_both(worker, engine)
    keys = (NO_KEYS, keys_of(engine, 1, 6))
    worker.submit_load(2, LoadSpec(keys, "r", 0), device_blocks([], [7]))
    assert finish(worker, 2).transfer_size == sum(WINDOW_LAYER_BYTES)
    assert (tensors[0][7, : WINDOW_LAYER_BYTES[0]] == tensors[0][12, : WINDOW_LAYER_BYTES[0]]).all()


@pytest.mark.parametrize("lacking_group", [0, 1])
def test_a_load_that_fails_in_one_group_gives_up_the_whole_request(
    lacking_group: int, worker: KvtierWorker, engine: EngineStore
) -> None:
    save_both(worker, engine)
    keys = [keys_of(engine, 0, 0, 1), keys_of(engine, 1, 5, 6)]
    keys[lacking_group] = keys_of(engine, lacking_group, 5, 99)
    worker.submit_load(2, LoadSpec(tuple(keys), "r", 0), device_blocks([20, 8], [31, 5]))
    finish(worker, 2)
    # vLLM with several groups refuses names of blocks.
    assert worker.take_failed_block_ids() == set()
    assert worker.take_failed_request_ids() == {"r"}
    assert worker.take_failed_request_ids() == set()
    assert engine.failed_requests == {"r"}


def test_a_group_whose_save_is_declined_takes_nothing_from_the_other(
    worker: KvtierWorker, engine: EngineStore
) -> None:
    unknown = np.full(16, 7, dtype=np.uint8).tobytes()
    saves = (
        GroupSave(keys_of(engine, 0, 0), unknown),
        GroupSave(keys_of(engine, 1, 5), None, is_chain=False),
    )
    worker.submit_store(1, device_blocks([3], [4]), SaveSpec(saves, "s", engine.generation))
    assert finish(worker, 1).transfer_size == sum(WINDOW_LAYER_BYTES)
    assert engine.groups[0].namespace.lookup(saves[0].keys).num_blocks == 0
    assert engine.groups[1].namespace.lookup(saves[1].keys).num_blocks == 1


def test_a_reset_ends_all_parts_of_what_is_under_way(
    worker: KvtierWorker, engine: EngineStore
) -> None:
    save_both(worker, engine)
    keys = (keys_of(engine, 0, 0, 1), keys_of(engine, 1, 5, 6))
    worker.submit_load(2, LoadSpec(keys, "r", 0), device_blocks([20, 8], [31, 5]))
    engine.reset()
    (ended,) = worker.get_finished()
    assert ended.job_id == 2
    assert worker.take_failed_request_ids() == {"r"}
