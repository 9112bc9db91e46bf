"""RankWorker: the worker's half in a process of its own, which carries out the store's plans.

Not thread-safe: used by the worker's thread only.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from vllm.v1.kv_offload.base import (
    GPULoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

from kvtier.adapters.vllm.rank_messages import RankMetadata
from kvtier.adapters.vllm.rank_setup import RankSetup, RankShape
from kvtier.adapters.vllm.transfer_specs import LoadSpec, SaveSpec
from kvtier.adapters.vllm.worker import FLUSH_WAIT_S, STUCK_S, make_load_stream
from kvtier.arena_view import ArenaView
from kvtier.block_plan import CORRUPT, DONE, BlockPlan, PlanResult
from kvtier.core_log import logger
from kvtier.errors import KvtierError, TimeoutError
from kvtier.paged_geometry import PagedGeometry
from kvtier.paged_worker import PagedWorker, WorkerJob
from kvtier.results import I64


@dataclass(slots=True, kw_only=True)
class RankTransfer:
    """A save or load that the engine has not been told the end of."""

    block_ids: I64
    """int64[num_blocks]: the engine's blocks."""
    request_id: str | None
    """The request that waits for a load; None for a save."""
    start_s: float
    is_moved: npt.NDArray[np.bool_]
    """bool[num_blocks]: moved by this rank, and right."""
    jobs: list[tuple[BlockPlan, WorkerJob]] = field(default_factory=list)
    is_exhausted: bool = False
    """No more plans will come, or none of them will be carried out."""
    is_dropped: bool = False
    """The engine has its blocks back: plans that still come are refused."""


class RankWorker(OffloadingWorker):
    """Moves this rank's part of each block between its tensors and the store's host memory.

    vLLM starts a transfer here; what is to be moved comes in plans, with the same step or a later
    one. A transfer is over when there will be no more plans and all that came were carried out.
    """

    def __init__(
        self,
        tensors: Sequence[Any],
        geometry: PagedGeometry,
        shape: RankShape,
        *,
        loads_wait_for_steps: bool = True,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shape = shape
        self.is_known = False
        """Whether the scheduler's process has heard of the shape."""
        self._tensors = list(tensors)
        self._geometry = geometry
        self._loads_wait_for_steps = loads_wait_for_steps
        self._clock_s = clock_s
        self._is_set_up = False
        self._view: ArenaView | None = None
        self._paged: PagedWorker | None = None
        self._load_stream: Any = None
        self._received: RankMetadata | None = None
        self._generation = 0
        self._transfers: dict[int, RankTransfer] = {}
        # What came for transfers that vLLM has not started yet: it starts a save one step late.
        self._announced: set[int] = set()
        self._plans: dict[int, list[BlockPlan]] = {}
        self._exhausted: set[int] = set()
        self._answers: list[PlanResult] = []
        self._failed_block_ids: set[int] = set()
        self._failed_requests: set[str] = set()

    def receive(self, metadata: RankMetadata) -> None:
        """Takes in a step's plans, before vLLM starts its transfers. The same again: no effect.

        After a reset nothing that was planned before it touches the device's blocks any more.
        """
        if metadata is self._received:
            return
        self._received = metadata
        self.is_known = self.is_known or metadata.setup is not None
        if metadata.setup is not None and not self._is_set_up:
            self._set_up(metadata.setup)
        if metadata.generation != self._generation:
            self._generation = metadata.generation
            self._drop(self._transfers.values())
            for transfer in self._transfers.values():
                # What was loaded before it is not for whoever asks after it.
                transfer.is_moved[:] = False
        self._announced.update(metadata.load_jobs, metadata.store_jobs)
        for job_id, plan in metadata.plans:
            if job_id in self._announced:
                self._plans.setdefault(job_id, []).append(plan)
            else:
                self._start_plan(self._transfers.get(job_id), plan)
        for job_id in metadata.exhausted:
            if job_id in self._announced:
                self._exhausted.add(job_id)
            elif job_id in self._transfers:
                self._transfers[job_id].is_exhausted = True

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: SaveSpec, **options: Any
    ) -> bool:
        self._add(job_id, src_spec, dst_spec.generation, request_id=None)
        return True

    def submit_load(
        self, job_id: int, src_spec: LoadSpec, dst_spec: GPULoadStoreSpec, **options: Any
    ) -> bool:
        self._add(job_id, dst_spec, src_spec.generation, request_id=src_spec.request_id)
        return True

    def get_finished(self) -> list[TransferResult]:
        """Returns the transfers that ended since the last call."""
        for transfer in self._transfers.values():
            self._take_answers(transfer)
        ended = [it for it, that in self._transfers.items() if that.is_exhausted and not that.jobs]
        return [self._finish(job_id, self._transfers.pop(job_id)) for job_id in ended]

    def wait(self, job_ids: set[int]) -> None:
        """Blocks until this rank neither reads nor writes the device blocks of these transfers."""
        transfers = [self._transfers[job_id] for job_id in job_ids if job_id in self._transfers]
        until_s = self._clock_s() + FLUSH_WAIT_S
        for transfer in transfers:
            for _, job in transfer.jobs:
                with contextlib.suppress(TimeoutError):
                    job.wait(max(0.0, until_s - self._clock_s()))
        self._drop(transfers)

    def take_answers(self) -> list[PlanResult]:
        """Returns what the store is to be told since the last call."""
        answers, self._answers = self._answers, []
        return answers

    def take_failed_block_ids(self) -> set[int]:
        """Returns the engine's blocks that loads since the last call did not fill."""
        failed, self._failed_block_ids = self._failed_block_ids, set()
        return failed

    def take_failed_requests(self) -> set[str]:
        """Returns the requests that those blocks were for."""
        failed, self._failed_requests = self._failed_requests, set()
        return failed

    def shutdown(self) -> None:
        self._drop(self._transfers.values())
        self._transfers.clear()
        self._plans.clear()
        self._paged = None
        if self._view is not None:
            with contextlib.suppress(KvtierError):
                self._view.close()
            self._view = None

    def _set_up(self, setup: RankSetup) -> None:
        """Maps the store's memory. Without it plans are answered as failed, and vLLM computes."""
        self._is_set_up = True
        rank = self.shape.rank
        try:
            self._view = ArenaView.open(setup.arena)
            self._paged = PagedWorker(
                self._view,
                self._tensors,
                self._geometry,
                namespace_id=setup.namespace_id,
                part_bytes=setup.part_bytes,
                # One part: each rank has the same bytes.
                parts=rank if len(setup.part_bytes) > 1 else 0,
                rank=rank,
            )
        except KvtierError as error:
            logger.warning("rank %d saves and loads nothing: %s", rank, error)
            return
        self._load_stream = make_load_stream(
            self._paged.device, waits_for_steps=self._loads_wait_for_steps
        )

    def _add(
        self, job_id: int, device_spec: Any, generation: int, *, request_id: str | None
    ) -> None:
        block_ids = device_spec.block_ids.astype(np.int64)
        # Made before a reset: what the blocks hold by now is not what the keys say.
        is_dropped = generation != self._generation
        transfer = RankTransfer(
            block_ids=block_ids,
            request_id=request_id,
            start_s=self._clock_s(),
            is_moved=np.zeros(len(block_ids), dtype=np.bool_),
            is_exhausted=is_dropped or job_id in self._exhausted,
            is_dropped=is_dropped,
        )
        self._transfers[job_id] = transfer
        self._announced.discard(job_id)
        self._exhausted.discard(job_id)
        for plan in self._plans.pop(job_id, []):
            self._start_plan(transfer, plan)

    def _start_plan(self, transfer: RankTransfer | None, plan: BlockPlan) -> None:
        rank = self.shape.rank
        if rank >= plan.num_ranks:
            # All ranks have the same bytes, and one saves them: nobody waits for the others.
            return
        reason = "the engine has its blocks back"
        if transfer is not None and not transfer.is_dropped and self._paged is not None:
            stream = self._load_stream if plan.is_load else None
            try:
                job = self._paged.submit(plan, transfer.block_ids, stream)
            except KvtierError as error:
                reason = str(error)
                logger.warning("a plan was not begun: %s", error)
            else:
                transfer.jobs.append((plan, job))
                return
        self._answers.append(PlanResult.failed(plan, rank, reason))

    def _take_answers(self, transfer: RankTransfer) -> None:
        """Moves what has ended from the transfer's jobs to the answers."""
        left = []
        for plan, job in transfer.jobs:
            answer = job.poll()
            if answer is None:
                left.append((plan, job))
                continue
            self._answers.append(answer)
            if answer.status in {DONE, CORRUPT}:
                transfer.is_moved[plan.block_indices] = True
                transfer.is_moved[answer.undefined_indices] = False
        transfer.jobs = left

    def _finish(self, job_id: int, transfer: RankTransfer) -> TransferResult:
        num_moved = int(np.count_nonzero(transfer.is_moved))
        if transfer.request_id is not None and num_moved < len(transfer.block_ids):
            self._failed_block_ids.update(transfer.block_ids[~transfer.is_moved].tolist())
            self._failed_requests.add(transfer.request_id)
            logger.warning(
                "%d of %d blocks were not loaded; the engine computes them",
                len(transfer.block_ids) - num_moved,
                len(transfer.block_ids),
            )
        return TransferResult(
            job_id=job_id,
            success=True,
            transfer_size=num_moved * self.shape.block_bytes,
            transfer_time=self._clock_s() - transfer.start_s,
        )

    def _drop(self, transfers: Iterable[RankTransfer]) -> None:
        """Ends transfers: after it returned this rank does not touch their device blocks.

        There is no bound: what a device that stands may still write to must not be given to others.
        """
        listed = list(transfers)
        for transfer in listed:
            transfer.is_dropped = transfer.is_exhausted = True
            for _, job in transfer.jobs:
                job.cancel()
        for transfer in listed:
            for _, job in transfer.jobs:
                _wait_for_end(job)
            self._take_answers(transfer)


def _wait_for_end(job: WorkerJob) -> None:
    while True:
        try:
            job.wait(STUCK_S)
        except TimeoutError:
            logger.warning(
                "%s does not end, though the engine wants its blocks back: the device does not "
                "answer",
                job,
            )
        else:
            return
