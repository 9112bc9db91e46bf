"""A scheduler's half and its ranks in one process, with vLLM's channel between them."""

import pickle
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import vllm_engine
from half_setup import hash_of
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
)
from vllm.v1.kv_offload.base import GPULoadStoreSpec

from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.rank_messages import RankReport
from kvtier.adapters.vllm.rank_planner import RankPlanner
from kvtier.adapters.vllm.rank_setup import GroupShape, RankShape
from kvtier.adapters.vllm.rank_worker import RankWorker
from kvtier.adapters.vllm.transfer_specs import GroupSave, LoadSpec, SaveSpec
from kvtier.paged_geometry import FragmentPlace, PagedGeometry

torch: Any = vllm_engine.torch

NUM_DEVICE_BLOCKS = 32
END_S = 20.0


class Fleet:
    """A scheduler and its ranks, with vLLM's channel between them: every message is pickled."""

    def __init__(
        self,
        engine: EngineStore,
        part_bytes: tuple[int, ...],
        *,
        has_handshake: bool,
        num_groups: int = 1,
    ) -> None:
        self.engine = engine
        self.planner = RankPlanner(engine)
        self.tensors = [make_tensor(rank, num_bytes) for rank, num_bytes in enumerate(part_bytes)]
        self.ranks = [
            make_rank(rank, tensor, num_groups) for rank, tensor in enumerate(self.tensors)
        ]
        if has_handshake:
            self.planner.add_shapes([rank.shape for rank in self.ranks])
        self.ended: list[set[int]] = [set() for _ in self.ranks]
        self.failed_block_ids: set[int] = set()
        self.failed_request_ids: set[str] = set()
        self._delayed: dict[int, tuple[Any, Any]] = {}
        self._next_job_id = 0

    def keys(self, num_blocks: int, first: int = 0) -> Any:
        namespace = self.engine.namespace
        assert namespace is not None
        return np.stack([namespace.key(hash_of(it)) for it in range(first, first + num_blocks)])

    def save(self, block_ids: list[int], first: int = 0) -> int:
        spec = SaveSpec(
            (GroupSave(self.keys(len(block_ids), first), None),), "s", self.engine.generation
        )
        return self._step(store=(device_blocks(block_ids), spec))

    def load(self, block_ids: list[int], first: int = 0, request_id: str = "r") -> int:
        spec = LoadSpec((self.keys(len(block_ids), first),), request_id, self.engine.generation)
        return self._step(load=(spec, device_blocks(block_ids)))

    def step(self, ranks: list[int] | None = None) -> None:
        self._step(ranks=ranks)

    def finish(self, job_id: int) -> None:
        """Steps until every rank has ended the job, and the store all that was planned."""
        until_s = time.monotonic() + END_S
        while self.planner._transfers or not all(job_id in ended for ended in self.ended):
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
        self.failed_request_ids |= worker.take_failed_request_ids()
        return RankReport.extend(
            OffloadingWorkerMetadata(),
            answers=worker.take_answers(),
            failed_requests=worker.take_failed_requests(),
            shapes=[] if worker.is_known else [worker.shape],
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


def make_rank(rank: int, tensor: Any, num_groups: int = 1) -> RankWorker:
    """Groups share the tensor; a page of a later one is shorter than the room it has."""
    num_bytes = tensor.shape[1]
    geometries = [
        PagedGeometry(fragments=(FragmentPlace(0, 0, num_bytes, num_bytes - 96 * index),))
        for index in range(num_groups)
    ]
    groups = tuple(
        GroupShape(
            block_bytes=geometry.block_bytes,
            block_tokens=4,
            num_hashes=1,
            layout=geometry.layout,
        )
        for geometry in geometries
    )
    shape = RankShape(rank=rank, groups=groups, num_device_blocks=NUM_DEVICE_BLOCKS, device="cpu")
    return RankWorker([tensor], geometries, shape)
