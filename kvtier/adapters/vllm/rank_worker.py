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
from kvtier.adapters.vllm.transfer_steps import (
    STUCK_S,
    make_load_stream,
    split_by_group,
    wait_for_flush,
)
from kvtier.arena_view import ArenaView
from kvtier.block_plan import CORRUPT, DONE, BlockPlan, PlanResult
from kvtier.core_log import logger
from kvtier.errors import KvtierError, TimeoutError
from kvtier.paged_geometry import PagedGeometry
from kvtier.paged_worker import PagedWorker, WorkerJob
from kvtier.results import I64


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPart:
    """What a transfer moves of one group."""

    block_ids: I64
    """int64[num_blocks]: the engine's blocks."""
    is_moved: npt.NDArray[np.bool_]
    """bool[num_blocks]: moved by this rank, and right."""


@dataclass(slots=True, kw_only=True)
class RankTransfer:
    """A save or load that the engine has not been told the end of."""

    parts: tuple[RankPart, ...]
    """One a group."""
    request_id: str | None
    """The request that waits for a load; None for a save."""
    start_s: float
    jobs: list[tuple[int, BlockPlan, WorkerJob]] = field(default_factory=list)
    """(position of the group, plan, job)."""
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
        geometries: Sequence[PagedGeometry],
        shape: RankShape,
        *,
        loads_wait_for_steps: bool = True,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shape = shape
        self.is_known = False
        """Whether the scheduler's process has heard of the shape."""
        self._tensors = list(tensors)
        self._geometries = list(geometries)
        self._loads_wait_for_steps = loads_wait_for_steps
        self._clock_s = clock_s
        self._view: ArenaView | None = None
        self._setup: RankSetup | None = None
        # Namespace -> position of the group, and who moves its blocks.
        self._paged: dict[bytes, tuple[int, PagedWorker]] = {}
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
        self._failed_request_ids: set[str] = set()
        self._failed_requests: set[str] = set()

    def receive(self, metadata: RankMetadata) -> None:
        """Takes in a step's plans, before vLLM starts its transfers. The same again: no effect.

        After a reset nothing that was planned before it touches the device's blocks any more.
        """
        if metadata is self._received:
            return
        self._received = metadata
        self.is_known = self.is_known or metadata.setup is not None
        if metadata.setup is not None and self._setup is None:
            self._set_up(metadata.setup)
        if metadata.generation != self._generation:
            self._generation = metadata.generation
            self._drop(self._transfers.values())
            for transfer in self._transfers.values():
                # What was loaded before it is not for whoever asks after it.
                for part in transfer.parts:
                    part.is_moved[:] = False
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
        jobs = [job for transfer in transfers for _, _, job in transfer.jobs]
        wait_for_flush(jobs, self._clock_s)
        self._drop(transfers)

    def take_answers(self) -> list[PlanResult]:
        """Returns what the store is to be told since the last call."""
        answers, self._answers = self._answers, []
        return answers

    def take_failed_block_ids(self) -> set[int]:
        """Returns the engine's blocks that loads since the last call did not fill."""
        failed, self._failed_block_ids = self._failed_block_ids, set()
        return failed

    def take_failed_request_ids(self) -> set[str]:
        """Returns the requests that have to be computed from their beginning after a load."""
        failed, self._failed_request_ids = self._failed_request_ids, set()
        return failed

    def take_failed_requests(self) -> set[str]:
        """Returns the requests that loads since the last call failed for, in either way."""
        failed, self._failed_requests = self._failed_requests, set()
        return failed

    def shutdown(self) -> None:
        self._drop(self._transfers.values())
        self._transfers.clear()
        self._plans.clear()
        self._paged.clear()
        if self._view is not None:
            with contextlib.suppress(KvtierError):
                self._view.close()
            self._view = None

    def _set_up(self, setup: RankSetup) -> None:
        """Maps the store's memory. Without it plans are answered as failed, and vLLM computes."""
        self._setup = setup
        rank = self.shape.rank
        paged: dict[bytes, tuple[int, PagedWorker]] = {}
        try:
            self._view = ArenaView.open(setup.arena)
            for index, group in enumerate(setup.groups):
                worker = PagedWorker(
                    self._view,
                    self._tensors,
                    self._geometries[index],
                    namespace_id=group.namespace_id,
                    part_bytes=group.part_bytes,
                    # One part: each rank has the same bytes.
                    parts=rank if len(group.part_bytes) > 1 else 0,
                    rank=rank,
                    transfer_ctas=setup.transfer_settings.transfer_ctas,
                    gentle_saves=setup.transfer_settings.gentle_saves,
                )
                paged[bytes.fromhex(group.namespace_id)] = (index, worker)
        except KvtierError as error:
            logger.warning("rank %d saves and loads nothing: %s", rank, error)
            return
        self._paged = paged
        self._load_stream = make_load_stream(
            self.shape.device,
            waits_for_steps=self._loads_wait_for_steps or setup.is_loaded_whole,
        )

    def _add(
        self, job_id: int, device_spec: Any, generation: int, *, request_id: str | None
    ) -> None:
        # Made before a reset: what the blocks hold by now is not what the keys say.
        is_dropped = generation != self._generation
        transfer = RankTransfer(
            parts=tuple(
                RankPart(block_ids=ids, is_moved=np.zeros(len(ids), dtype=np.bool_))
                for ids in split_by_group(device_spec)
            ),
            request_id=request_id,
            start_s=self._clock_s(),
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
        known = self._paged.get(plan.namespace_id)
        if transfer is not None and not transfer.is_dropped and known is not None:
            index, worker = known
            stream = self._load_stream if plan.is_load else None
            try:
                job = worker.submit(plan, transfer.parts[index].block_ids, stream)
            except KvtierError as error:
                reason = str(error)
                logger.warning("a plan was not begun: %s", error)
            else:
                transfer.jobs.append((index, plan, job))
                return
        self._answers.append(PlanResult.failed(plan, rank, reason))

    def _take_answers(self, transfer: RankTransfer) -> None:
        """Moves what has ended from the transfer's jobs to the answers."""
        left = []
        for index, plan, job in transfer.jobs:
            answer = job.poll()
            if answer is None:
                left.append((index, plan, job))
                continue
            self._answers.append(answer)
            if answer.status in {DONE, CORRUPT}:
                is_moved = transfer.parts[index].is_moved
                is_moved[plan.block_indices] = True
                is_moved[answer.undefined_indices] = False
        transfer.jobs = left

    def _finish(self, job_id: int, transfer: RankTransfer) -> TransferResult:
        moved_bytes = 0
        for part, group in zip(transfer.parts, self.shape.groups, strict=True):
            num_moved = int(np.count_nonzero(part.is_moved))
            moved_bytes += num_moved * group.block_bytes
            if transfer.request_id is not None and num_moved < len(part.block_ids):
                self._note_failed(transfer.request_id, part)
        return TransferResult(
            job_id=job_id,
            success=True,
            transfer_size=moved_bytes,
            transfer_time=self._clock_s() - transfer.start_s,
        )

    def _note_failed(self, request_id: str, part: RankPart) -> None:
        self._failed_requests.add(request_id)
        failed_block_ids = part.block_ids[~part.is_moved].tolist()
        is_loaded_whole = self._setup is not None and self._setup.is_loaded_whole
        if is_loaded_whole:
            self._failed_request_ids.add(request_id)
        else:
            self._failed_block_ids.update(failed_block_ids)
        logger.warning(
            "%d of %d blocks were not loaded; the engine computes %s",
            len(failed_block_ids),
            len(part.block_ids),
            "their request from its beginning" if is_loaded_whole else "them",
        )

    def _drop(self, transfers: Iterable[RankTransfer]) -> None:
        """Ends transfers: after it returned this rank does not touch their device blocks.

        There is no bound: what a device that stands may still write to must not be given to others.
        """
        listed = list(transfers)
        for transfer in listed:
            transfer.is_dropped = transfer.is_exhausted = True
            for _, _, job in transfer.jobs:
                job.cancel()
        for transfer in listed:
            for _, _, job in transfer.jobs:
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
