"""KvtierWorker: the worker's half, which starts saves and loads and sees their end.

Not thread-safe: used by the worker's thread only.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from vllm.v1.kv_offload.base import (
    GPULoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.stored_group import StoredGroup
from kvtier.adapters.vllm.transfer_specs import GroupSave, LoadSpec, SaveSpec
from kvtier.adapters.vllm.transfer_steps import (
    STUCK_S,
    make_load_stream,
    split_by_group,
    wait_for_flush,
)
from kvtier.core_log import logger
from kvtier.errors import KvtierError
from kvtier.job import Job
from kvtier.outcome import Outcome
from kvtier.paged_blocks import PagedBlocks
from kvtier.results import U8, LoadResult, PutResult


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPart:
    """What a transfer moves of one group."""

    job: Any
    """None when it was not started, or was abandoned."""
    block_ids: Any
    """int64[num_blocks]: the engine's blocks."""
    block_bytes: int

    @property
    def outcomes(self) -> list[Outcome]:
        """Returns what became of each block; only when the job has ended."""
        if self.job is None:
            return [Outcome.FAILED] * len(self.block_ids)
        outcomes: list[Outcome] = self.job.result.outcomes
        return outcomes

    @property
    def num_done(self) -> int:
        """Returns how many blocks were moved; only when the job has ended."""
        return self.outcomes.count(Outcome.DONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A save or load that the engine has not been told the end of: over when all parts are."""

    parts: tuple[TransferPart, ...]
    request_id: str | None
    """The request that waits for a load; None for a save."""
    start_s: float

    @property
    def is_over(self) -> bool:
        return all(part.job is None or part.job.done() for part in self.parts)

    @property
    def is_whole(self) -> bool:
        """Returns whether vLLM may go by it. A save that failed takes nothing from anyone."""
        return self.request_id is None or all(
            part.num_done == len(part.block_ids) for part in self.parts
        )


class KvtierWorker(OffloadingWorker):
    """Hands transfers to the store, which orders them after what the device is doing.

    vLLM takes every transfer for a success. Blocks that a load did not bring go another way:
    take_failed_block_ids() names them, and vLLM computes them. Where a block is of no use without
    others that were not loaded either, take_failed_request_ids() names the whole request.
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
        self._failed_request_ids: set[str] = set()
        self._load_stream = _find_load_stream(engine, waits_for_steps=loads_wait_for_steps)
        self.has_collector = False
        """Whether somebody asks for what has ended beside vLLM's worker: see collecting()."""
        self._starts_early = not loads_wait_for_steps and not engine.is_loaded_whole
        # Loads that were started before vLLM submitted them.
        self._unclaimed: set[int] = set()
        # Transfers that ended well and were left to the collector once.
        self._left: set[int] = set()
        self._is_collecting = False
        engine.abandon_transfers = self.abandon

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: SaveSpec, **options: Any
    ) -> bool:
        def start(paged: PagedBlocks, save: GroupSave, block_ids: Any) -> Job[PutResult]:
            return paged.save(
                save.keys,
                block_ids,
                parent=save.parent,
                chain=save.is_chain,
                request=dst_spec.request_id,
            )

        parts = self._start(start, dst_spec.groups, src_spec, dst_spec.generation)
        self._add(job_id, parts, request_id=None)
        return True

    def start_load(
        self,
        job_id: int,
        source: LoadSpec,
        target: GPULoadStoreSpec,
        saving: Sequence[Collection[int]],
    ) -> None:
        """Starts a load that vLLM will submit with the step that it is planning.

        saving: the blocks of saves that were not submitted yet. A load into one of them, or into a
        block of a save under way, is left to submit_load(): vLLM waits for the save before.
        """
        if not self._starts_early:
            return
        block_ids = set(target.block_ids.tolist())
        saves = [it for it in self._transfers.values() if it.request_id is None]
        under_way = [part.block_ids.tolist() for it in saves for part in it.parts]
        if all(block_ids.isdisjoint(it) for it in (*saving, *under_way)):
            self.submit_load(job_id, source, target)
            self._unclaimed.add(job_id)

    def submit_load(
        self, job_id: int, src_spec: LoadSpec, dst_spec: GPULoadStoreSpec, **options: Any
    ) -> bool:
        if job_id in self._unclaimed:
            self._unclaimed.remove(job_id)
            return True

        def start(paged: PagedBlocks, keys: U8, block_ids: Any) -> Job[LoadResult]:
            stream, request_id = self._load_stream, src_spec.request_id
            return paged.load(keys, block_ids, stream=stream, request=request_id)

        parts = self._start(start, src_spec.groups, dst_spec, src_spec.generation)
        self._add(job_id, parts, request_id=src_spec.request_id)
        return True

    @property
    def has_transfers(self) -> bool:
        """Returns whether there are transfers whose end was not told yet."""
        return bool(self._transfers)

    @contextlib.contextmanager
    def collecting(self, wait_s: float) -> Iterator[None]:
        """Makes get_finished() return all that ended well; else it leaves that to the collector.

        Loads that failed are told by the other calls only, beside which vLLM asks for their names.
        wait_s: how long to wait for the load that comes next.
        """
        loads = [it for it in self._transfers.values() if it.request_id is not None]
        if wait_s > 0:
            for job in _list_jobs(loads[:1]):
                with contextlib.suppress(KvtierError):
                    job.wait(wait_s)
        self._is_collecting = True
        try:
            yield
        finally:
            self._is_collecting = False

    def get_finished(self) -> list[TransferResult]:
        """Returns transfers that ended and were not told yet."""
        over = [
            job_id
            for job_id, transfer in self._transfers.items()
            if transfer.is_over and job_id not in self._unclaimed
        ]
        whole = {it for it in over if self._transfers[it].is_whole}
        if self._is_collecting:
            ended = [it for it in over if it in whole]
        else:
            # Left only once: a step's output that tells nothing is not followed by a collection.
            left = whole - self._left if self.has_collector else set()
            ended = [it for it in over if it not in left]
            self._left = left
        return [self._finish(job_id, self._transfers.pop(job_id)) for job_id in ended]

    def wait(self, job_ids: set[int]) -> None:
        """Blocks until nobody reads or writes the device blocks of these transfers any more."""
        transfers = [self._transfers.get(job_id) for job_id in job_ids]
        jobs = _list_jobs(it for it in transfers if it is not None)
        wait_for_flush(jobs, self._clock_s)
        _end_all([job for job in jobs if not job.done()])

    def take_failed_block_ids(self) -> set[int]:
        """Returns the engine's blocks that loads since the last call did not fill."""
        failed, self._failed_block_ids = self._failed_block_ids, set()
        return failed

    def take_failed_request_ids(self) -> set[str]:
        """Returns the requests that have to be computed from their beginning after a load."""
        failed, self._failed_request_ids = self._failed_request_ids, set()
        return failed

    def abandon(self) -> None:
        """Ends all transfers: after it returned nobody touches the device's blocks.

        Each is still told to vLLM; loads among them count as failed.
        """
        _end_all(_list_jobs(self._transfers.values()))
        for job_id, transfer in self._transfers.items():
            parts = tuple(replace(part, job=None) for part in transfer.parts)
            self._transfers[job_id] = replace(transfer, parts=parts)

    def shutdown(self) -> None:
        self.abandon()
        self._transfers.clear()
        self._unclaimed.clear()

    def _start(
        self,
        start: Callable[[PagedBlocks, Any, Any], Any],
        listed: Sequence[Any],
        device_spec: GPULoadStoreSpec,
        generation: int,
    ) -> tuple[TransferPart, ...]:
        """Starts one job a group."""
        # vLLM starts transfers only after it handed over its tensors.
        groups = self._engine.groups
        assert groups
        block_ids = split_by_group(device_spec)
        return tuple(
            TransferPart(
                job=self._start_one(start, group, entry, ids, generation),
                block_ids=ids,
                block_bytes=group.namespace.block_bytes,
            )
            for group, entry, ids in zip(groups, listed, block_ids, strict=True)
            if len(ids)
        )

    def _start_one(
        self,
        start: Callable[[PagedBlocks, Any, Any], Any],
        group: StoredGroup,
        entry: Any,
        block_ids: Any,
        generation: int,
    ) -> Any:
        if generation != self._engine.generation:
            # Planned before a reset: what the blocks hold by now is not what the keys say.
            return None
        assert group.paged is not None
        try:
            return start(group.paged, entry, block_ids)
        except KvtierError as error:
            logger.warning("a transfer was not started: %s", error)
            return None

    def _add(self, job_id: int, parts: tuple[TransferPart, ...], *, request_id: str | None) -> None:
        self._transfers[job_id] = Transfer(
            parts=parts, request_id=request_id, start_s=self._clock_s()
        )

    def _finish(self, job_id: int, transfer: Transfer) -> TransferResult:
        moved_bytes = 0
        for part in transfer.parts:
            num_done = part.num_done
            moved_bytes += num_done * part.block_bytes
            if transfer.request_id is not None and num_done < len(part.block_ids):
                self._note_failed(transfer.request_id, part)
        return TransferResult(
            job_id=job_id,
            success=True,
            transfer_size=moved_bytes,
            transfer_time=self._clock_s() - transfer.start_s,
        )

    def _note_failed(self, request_id: str, part: TransferPart) -> None:
        is_done = np.array([outcome is Outcome.DONE for outcome in part.outcomes], dtype=np.bool_)
        self._engine.failed_requests.add(request_id)
        failed_block_ids = part.block_ids[~is_done].tolist()
        if self._engine.is_loaded_whole:
            self._failed_request_ids.add(request_id)
        else:
            self._failed_block_ids.update(failed_block_ids)
        logger.warning(
            "%d of %d blocks were not loaded (%s); the engine computes %s",
            len(failed_block_ids),
            len(is_done),
            part.outcomes[int(np.argmin(is_done))].name,
            "their request from its beginning" if self._engine.is_loaded_whole else "them",
        )


def _find_load_stream(engine: EngineStore, *, waits_for_steps: bool) -> Any:
    """Blocks that left a window, and states, are given up while their request runs: there loads
    always wait for the step that may still read them.
    """
    paged = engine.groups[0].paged if engine.groups else None
    return make_load_stream(
        "cpu" if paged is None else paged.device,
        waits_for_steps=waits_for_steps or engine.is_loaded_whole,
    )


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


def _list_jobs(transfers: Iterable[Transfer]) -> list[Any]:
    return [it.job for transfer in transfers for it in transfer.parts if it.job is not None]
