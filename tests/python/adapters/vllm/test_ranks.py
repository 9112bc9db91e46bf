"""Workers in processes of their own: each moves its part, and a block is there when all have."""

import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import vllm_engine  # noqa: F401
from half_setup import IDENTITY, hash_of
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
)
from vllm.v1.kv_offload.base import GPULoadStoreSpec

import kvtier
from kvtier.adapters.vllm.connector_settings import parse_connector_settings
from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.rank_messages import RankReport
from kvtier.adapters.vllm.rank_planner import RankPlanner
from kvtier.adapters.vllm.rank_setup import RankShape
from kvtier.adapters.vllm.rank_worker import RankWorker
from kvtier.adapters.vllm.request_chain import RequestRules
from kvtier.adapters.vllm.transfer_specs import LoadSpec, SaveSpec
from kvtier.paged_geometry import FragmentPlace, PagedGeometry

NUM_DEVICE_BLOCKS = 32
PART_BYTES = (4096, 1096)
END_S = 20.0


class Fleet:
    """A scheduler and its ranks, with vLLM's channel between them: every message is pickled."""

    def __init__(self, engine: EngineStore, part_bytes: tuple[int, ...]) -> None:
        self.engine = engine
        self.planner = RankPlanner(engine)
        self.tensors = [make_tensor(rank, num_bytes) for rank, num_bytes in enumerate(part_bytes)]
        self.ranks = [make_rank(rank, tensor) for rank, tensor in enumerate(self.tensors)]
        engine.attach_ranks([rank.shape for rank in self.ranks])
        self.ended: list[set[int]] = [set() for _ in self.ranks]
        self.failed_block_ids: set[int] = set()
        self._delayed: dict[int, tuple[Any, Any]] = {}
        self._next_job_id = 0

    def keys(self, num_blocks: int, first: int = 0) -> Any:
        namespace = self.engine.namespace
        assert namespace is not None
        return np.stack([namespace.key(hash_of(it)) for it in range(first, first + num_blocks)])

    def save(self, block_ids: list[int], first: int = 0) -> int:
        spec = SaveSpec(self.keys(len(block_ids), first), None, "s", self.engine.generation)
        return self._step(store=(device_blocks(block_ids), spec))

    def load(self, block_ids: list[int], first: int = 0, request_id: str = "r") -> int:
        spec = LoadSpec(self.keys(len(block_ids), first), request_id, self.engine.generation)
        return self._step(load=(spec, device_blocks(block_ids)))

    def step(self, ranks: list[int] | None = None) -> None:
        self._step(ranks=ranks)

    def finish(self, job_id: int) -> None:
        """Steps until every rank has ended the job, and the store all that was planned."""
        until_s = time.monotonic() + END_S
        while self.planner._jobs or not all(job_id in ended for ended in self.ended):
            assert time.monotonic() < until_s, f"job {job_id} does not end: {self.ended}"
            self.step()

    def _step(self, store: Any = None, load: Any = None, ranks: list[int] | None = None) -> int:
        job_id, self._next_job_id = self._next_job_id, self._next_job_id + 1
        metadata = OffloadingConnectorMetadata(
            load_jobs={} if load is None else {job_id: as_entry(*load)},
            store_jobs={} if store is None else {job_id: as_entry(*store)},
            jobs_to_flush=None,
        )
        sent = self.planner.plan(metadata)
        delayed, self._delayed = self._delayed, {} if store is None else {job_id: store}
        merged: Any = None
        for rank, worker in enumerate(self.ranks):
            if ranks is not None and rank not in ranks:
                continue
            received = pickle.loads(pickle.dumps(sent))
            worker.receive(received)
            for delayed_id, (src, dst) in delayed.items():
                assert worker.submit_store(delayed_id, src, dst)
            if load is not None:
                assert worker.submit_load(job_id, *load)
            report = self.report(rank)
            merged = report if merged is None else merged.aggregate(report)
        self.planner.take_report(pickle.loads(pickle.dumps(merged)))
        return job_id

    def report(self, rank: int) -> RankReport:
        worker = self.ranks[rank]
        self.ended[rank] |= {it.job_id for it in worker.get_finished()}
        self.failed_block_ids |= worker.take_failed_block_ids()
        return RankReport.extend(
            OffloadingWorkerMetadata(),
            answers=worker.take_answers(),
            failed_requests=worker.take_failed_requests(),
        )

    def close(self) -> None:
        for rank in self.ranks:
            rank.shutdown()
        self.engine.close()


def as_entry(src: Any, dst: Any) -> Any:
    return SimpleNamespace(req_id="r", src_spec=src, dst_spec=dst)


def device_blocks(block_ids: list[int]) -> GPULoadStoreSpec:
    return GPULoadStoreSpec(block_ids, group_sizes=[len(block_ids)], block_indices=[0])


def make_tensor(rank: int, num_bytes: int) -> Any:
    number = torch.arange(NUM_DEVICE_BLOCKS * num_bytes, dtype=torch.int64)
    filled = (number * 2654435761 >> 7) + rank * 31
    return filled.to(torch.int8).reshape(NUM_DEVICE_BLOCKS, num_bytes)


def make_rank(rank: int, tensor: Any) -> RankWorker:
    num_bytes = tensor.shape[1]
    geometry = PagedGeometry(fragments=(FragmentPlace(0, 0, num_bytes, num_bytes),))
    shape = RankShape(
        rank=rank,
        block_bytes=num_bytes,
        block_tokens=4,
        num_device_blocks=NUM_DEVICE_BLOCKS,
        layout=geometry.layout,
        device="cpu",
    )
    return RankWorker([tensor], geometry, shape)


@pytest.fixture
def make_fleet() -> Iterator[Callable[..., Fleet]]:
    made: list[Fleet] = []

    def make(part_bytes: tuple[int, ...] = PART_BYTES, **options: Any) -> Fleet:
        is_replicated = options.pop("is_replicated", False)
        extra = {"kv_max_cpu_memory": "4MiB", **options}
        engine = EngineStore(
            parse_connector_settings(extra),
            identity=dict(IDENTITY),
            rules=RequestRules(),
            num_ranks=len(part_bytes),
            is_replicated=is_replicated,
        )
        made.append(Fleet(engine, part_bytes))
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()


def test_each_rank_gets_its_own_bytes_back_into_other_places(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet()
    before = [tensor.clone() for tensor in fleet.tensors]
    fleet.finish(fleet.save([3, 9, 4]))
    assert fleet.engine.namespace is not None
    assert fleet.engine.namespace.lookup(fleet.keys(3)).num_blocks == 3
    fleet.finish(fleet.load([20, 21, 22]))
    for tensor, old in zip(fleet.tensors, before, strict=True):
        assert torch.equal(tensor[[20, 21, 22]], old[[3, 9, 4]])
        rest = [it for it in range(NUM_DEVICE_BLOCKS) if it not in {20, 21, 22}]
        assert torch.equal(tensor[rest], old[rest])
    assert fleet.failed_block_ids == set()
    assert fleet.engine.failed_requests == set()


def test_a_block_is_not_there_until_the_last_rank_has_answered(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet()
    fleet.save([1, 2])
    namespace = fleet.engine.namespace
    assert namespace is not None
    for _ in range(50):
        fleet.step(ranks=[0])
    assert namespace.lookup(fleet.keys(2)).num_blocks == 0


def test_blocks_come_back_from_disk_after_a_restart(
    make_fleet: Callable[..., Fleet], disk_folder: Path
) -> None:
    sizes = {"disk_path": str(disk_folder), "disk_bytes": "64MiB", "staging_bytes": "1MiB"}
    first = make_fleet(kv_device="disk", kv_max_cpu_memory="1MiB", **sizes)
    before = [tensor.clone() for tensor in first.tensors]
    first.finish(first.save(list(range(12))))
    first.close()
    second = make_fleet(kv_device="disk", kv_max_cpu_memory="1MiB", **sizes)
    for tensor in second.tensors:
        tensor.zero_()
    second.finish(second.load(list(range(12, 24))))
    for tensor, old in zip(second.tensors, before, strict=True):
        assert torch.equal(tensor[12:24], old[:12])
    assert second.failed_block_ids == set()


def test_what_one_rank_cannot_load_is_named_and_the_request_loads_no_more(
    make_fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = make_fleet()
    fleet.finish(fleet.save([3, 9, 4]))

    def refuse(*_: object) -> None:
        raise kvtier.UsageError("planted")

    monkeypatch.setattr(fleet.ranks[1]._paged.__class__, "submit", refuse)
    fleet.finish(fleet.load([20, 21, 22], request_id="unlucky"))
    assert fleet.failed_block_ids == {20, 21, 22}
    assert fleet.engine.failed_requests == {"unlucky"}


def test_a_load_of_what_is_not_there_names_all_its_blocks(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet()
    before = [tensor.clone() for tensor in fleet.tensors]
    fleet.finish(fleet.load([5, 6], first=70))
    assert fleet.failed_block_ids == {5, 6}
    assert all(torch.equal(*pair) for pair in zip(fleet.tensors, before, strict=True))


def test_after_a_flush_no_plan_touches_the_blocks(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet()
    fleet.finish(fleet.save([3, 9]))
    before = [tensor.clone() for tensor in fleet.tensors]
    worker = fleet.ranks[0]
    spec = LoadSpec(fleet.keys(2), "r", 0)
    metadata = OffloadingConnectorMetadata(
        load_jobs={900: as_entry(spec, device_blocks([20, 21]))}, store_jobs={}, jobs_to_flush=None
    )
    sent = fleet.planner.plan(metadata)
    assert sent.plans
    plans, sent.plans = sent.plans, ()
    worker.receive(sent)
    worker.submit_load(900, spec, device_blocks([20, 21]))
    worker.wait({900})
    assert [it.job_id for it in worker.get_finished()] == [900]
    late = fleet.planner.plan(OffloadingConnectorMetadata({}, {}, None))
    late.plans = plans
    worker.receive(late)
    assert [it.status for it in worker.take_answers()] == ["failed"]
    assert torch.equal(fleet.tensors[0], before[0])


def test_a_reset_ends_what_was_planned_and_its_slots_are_free_again(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet(part_bytes=(500_000, 500_000))
    job_id = fleet.save([0, 1, 2])
    fleet.engine.reset()
    fleet.finish(job_id)
    assert fleet.engine.namespace is not None
    assert fleet.engine.namespace.lookup(fleet.keys(3)).num_blocks == 0
    # The host tier has four slots: three are not held any more.
    for first in (10, 20):
        fleet.finish(fleet.save([4, 5, 6], first=first))
        assert fleet.engine.namespace.lookup(fleet.keys(3, first)).num_blocks == 3


def test_equal_kv_is_kept_once_and_loaded_by_all(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(part_bytes=(4096, 4096), is_replicated=True)
    fleet.tensors[1].copy_(fleet.tensors[0])
    before = fleet.tensors[0].clone()
    fleet.finish(fleet.save([3, 9]))
    assert fleet.engine.namespace is not None
    assert fleet.engine.namespace.block_bytes == 4096
    fleet.finish(fleet.load([20, 21]))
    for tensor in fleet.tensors:
        assert torch.equal(tensor[[20, 21]], before[[3, 9]])


def test_a_rank_that_does_not_reach_the_memory_fails_its_loads_only(
    make_fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = make_fleet()

    def refuse(_: object) -> None:
        raise kvtier.TierIOError("planted")

    monkeypatch.setattr("kvtier.adapters.vllm.rank_worker.ArenaView.open", refuse)
    fleet.finish(fleet.save([3, 9]))
    fleet.finish(fleet.load([20, 21]))
    assert fleet.failed_block_ids == {20, 21}


@pytest.mark.parametrize(
    ("ranks", "reason"), [([0], "expected 2 workers"), ([0, 0], "expected 2 workers")]
)
def test_ranks_that_do_not_fit_together_are_refused(ranks: list[int], reason: str) -> None:
    engine = EngineStore(
        parse_connector_settings({"kv_max_cpu_memory": "1MiB"}),
        identity=dict(IDENTITY),
        rules=RequestRules(),
        num_ranks=2,
    )
    shapes = [make_rank(rank, make_tensor(rank, 4096)).shape for rank in ranks]
    with pytest.raises(kvtier.UnsupportedError, match=reason):
        engine.attach_ranks(shapes)
    engine.close()
