"""KvtierWorker: the worker's half, which starts saves and loads and sees their end.

Not thread-safe: used by the worker's thread only.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from vllm.v1.kv_offload.base import (
    GPULoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.transfer_specs import LoadSpec, SaveSpec
from kvtier.core_log import logger
from kvtier.errors import KvtierError, TimeoutError
from kvtier.job import Job
from kvtier.outcome import Outcome
from kvtier.paged_blocks import PagedBlocks
from kvtier.results import LoadResult, PutResult

STUCK_S: Final = 5.0
"""A transfer that takes so long to end is said to be stuck, each time anew."""
FLUSH_WAIT_S: Final = 1.0
"""How long the engine waits for a save when it wants the blocks for something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A save or load that the engine has not been told the end of."""

    job: Any
    """None when it was not started, or was abandoned."""
    block_ids: Any
    """int64[num_blocks]: the engine's blocks."""
    request_id: str | None
    """The request that waits for a load; None for a save."""
    start_s: float


class KvtierWorker(OffloadingWorker):
    """Hands transfers to the store, which orders them after what the device is doing.

    vLLM takes every transfer for a success. Blocks that a load did not bring go another way:
    take_failed_block_ids() names them, and vLLM computes them.
    """

    def __init__(
        self,
        engine: EngineStore,
        *,
        loads_wait_for_steps: bool = True,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """loads_wait_for_steps: whether a step under way may still write to a load's blocks."""
        self._engine = engine
        self._clock_s = clock_s
        self._transfers: dict[int, Transfer] = {}
        self._failed_block_ids: set[int] = set()
        device = "cpu" if engine.paged is None else engine.paged.device
        self._load_stream = make_load_stream(device, waits_for_steps=loads_wait_for_steps)
        engine.abandon_transfers = self.abandon

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: SaveSpec, **options: Any
    ) -> bool:
        block_ids = src_spec.block_ids.astype(np.int64)

        def start(paged: PagedBlocks) -> Job[PutResult]:
            keys, parent = dst_spec.keys, dst_spec.parent
            return paged.save(keys, block_ids, parent=parent, request=dst_spec.request_id)

        job = self._start(start, dst_spec.generation)
        self._add(job_id, job, block_ids, request_id=None)
        return True

    def submit_load(
        self, job_id: int, src_spec: LoadSpec, dst_spec: GPULoadStoreSpec, **options: Any
    ) -> bool:
        block_ids = dst_spec.block_ids.astype(np.int64)

        def start(paged: PagedBlocks) -> Job[LoadResult]:
            stream, request_id = self._load_stream, src_spec.request_id
            return paged.load(src_spec.keys, block_ids, stream=stream, request=request_id)

        job = self._start(start, src_spec.generation)
        self._add(job_id, job, block_ids, request_id=src_spec.request_id)
        return True

    def get_finished(self) -> list[TransferResult]:
        """Returns the transfers that ended since the last call."""
        ended = [it for it, transfer in self._transfers.items() if _is_over(transfer)]
        return [self._finish(job_id, self._transfers.pop(job_id)) for job_id in ended]

    def wait(self, job_ids: set[int]) -> None:
        """Blocks until nobody reads or writes the device blocks of these transfers any more."""
        transfers = [self._transfers.get(job_id) for job_id in job_ids]
        jobs = [it.job for it in transfers if it is not None and it.job is not None]
        until_s = self._clock_s() + FLUSH_WAIT_S
        for job in jobs:
            with contextlib.suppress(TimeoutError):
                job.wait(max(0.0, until_s - self._clock_s()))
        _end_all([job for job in jobs if not job.done()])

    def take_failed_block_ids(self) -> set[int]:
        """Returns the engine's blocks that loads since the last call did not fill."""
        failed, self._failed_block_ids = self._failed_block_ids, set()
        return failed

    def abandon(self) -> None:
        """Ends all transfers: after it returned nobody touches the device's blocks.

        Each is still told to vLLM; loads among them count as failed.
        """
        _end_all([it.job for it in self._transfers.values() if it.job is not None])
        for job_id, transfer in self._transfers.items():
            self._transfers[job_id] = replace(transfer, job=None)

    def shutdown(self) -> None:
        self.abandon()
        self._transfers.clear()

    def _start(self, start: Callable[[PagedBlocks], Any], generation: int) -> Any:
        if generation != self._engine.generation:
            # Planned before a reset: what the blocks hold by now is not what the keys say.
            return None
        # vLLM starts transfers only after it handed over its tensors.
        assert self._engine.paged is not None
        try:
            return start(self._engine.paged)
        except KvtierError as error:
            logger.warning("a transfer was not started: %s", error)
            return None

    def _add(self, job_id: int, job: Any, block_ids: Any, *, request_id: str | None) -> None:
        self._transfers[job_id] = Transfer(
            job=job, block_ids=block_ids, request_id=request_id, start_s=self._clock_s()
        )

    def _finish(self, job_id: int, transfer: Transfer) -> TransferResult:
        outcomes = (
            [Outcome.FAILED] * len(transfer.block_ids)
            if transfer.job is None
            else transfer.job.result.outcomes
        )
        is_done = np.array([outcome is Outcome.DONE for outcome in outcomes], dtype=np.bool_)
        if transfer.request_id is not None and not is_done.all():
            self._failed_block_ids.update(transfer.block_ids[~is_done].tolist())
            self._engine.failed_requests.add(transfer.request_id)
            first = outcomes[int(np.argmin(is_done))]
            logger.warning(
                "%d of %d blocks were not loaded (%s); the engine computes them",
                int(np.count_nonzero(~is_done)),
                len(outcomes),
                first.name,
            )
        namespace = self._engine.namespace
        block_bytes = 0 if namespace is None else namespace.block_bytes
        return TransferResult(
            job_id=job_id,
            success=True,
            transfer_size=int(np.count_nonzero(is_done)) * block_bytes,
            transfer_time=self._clock_s() - transfer.start_s,
        )


def make_load_stream(device: str, *, waits_for_steps: bool) -> Any:
    """Returns a stream on which nothing runs; None: loads wait for what the engine's has by then.

    device: "cpu" or "cuda:N".
    """
    if device == "cpu" or waits_for_steps:
        return None
    return torch.cuda.Stream(device=device)


def _end_all(jobs: list[Any]) -> None:
    """Ends jobs: all are asked before any is waited for.

    There is no bound: what a device that stands may still write to must not be given to others.
    """
    for job in jobs:
        job.cancel()
    for job in jobs:
        while not job.cancel(wait=True, timeout_s=STUCK_S):
            logger.warning(
                "%s does not end, though the engine wants its blocks back: the device or the disk "
                "does not answer",
                job,
            )


def _is_over(transfer: Transfer) -> bool:
    return transfer.job is None or transfer.job.done()
