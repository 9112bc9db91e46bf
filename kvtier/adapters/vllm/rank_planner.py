"""RankPlanner: turns vLLM's transfers into plans for ranks that run in processes of their own.

Not thread-safe: used by the scheduler's thread only.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
)

from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.rank_messages import RankMetadata, RankReport
from kvtier.adapters.vllm.rank_setup import RankShape
from kvtier.adapters.vllm.stored_group import StoredGroup
from kvtier.adapters.vllm.transfer_specs import GroupSave, LoadSpec, SaveSpec
from kvtier.block_plan import FAILED, BlockPlan
from kvtier.core_log import logger
from kvtier.errors import KvtierError
from kvtier.planned_job import PlannedJob

_NOTHING_MOVED: Final[dict[str, Any]] = {
    "first_part": 0,
    "num_parts": 0,
    "checksums": np.empty(0, dtype=np.uint64),
    "undefined_indices": np.empty(0, dtype=np.int64),
}


@dataclass(slots=True)
class PlannedTransfer:
    """A transfer of vLLM's that the store has not all behind itself."""

    jobs: list[PlannedJob[Any]]
    """One for each group that has blocks in it."""
    is_exhausted: bool = False
    """The ranks were told that no more plans will come."""


class RankPlanner:
    """Makes plan jobs of each transfer, and brings the ranks' answers to the store."""

    def __init__(self, engine: EngineStore) -> None:
        self._engine = engine
        self._transfers: dict[int, PlannedTransfer] = {}
        self._shapes: dict[int, RankShape] = {}
        engine.abandon_transfers = self._cancel_all

    def plan(self, metadata: OffloadingConnectorMetadata) -> RankMetadata:
        """Returns the step's metadata with all plans that can be sent by now."""
        for job_id, entry in metadata.load_jobs.items():
            self._begin(job_id, entry.src_spec)
        for job_id, entry in metadata.store_jobs.items():
            self._begin(job_id, entry.dst_spec)
        plans: list[tuple[int, BlockPlan]] = []
        exhausted: list[int] = []
        for job_id, transfer in list(self._transfers.items()):
            if not transfer.is_exhausted:
                for job in transfer.jobs:
                    plans += [(job_id, plan) for plan in job.take_plans()]
                if all(job.are_plans_exhausted for job in transfer.jobs):
                    transfer.is_exhausted = True
                    exhausted.append(job_id)
            if transfer.is_exhausted and all(job.done() for job in transfer.jobs):
                del self._transfers[job_id]
        return RankMetadata.extend(
            metadata,
            setup=self._engine.rank_setup,
            generation=self._engine.generation,
            plans=tuple(plans),
            exhausted=tuple(exhausted),
        )

    def add_shapes(self, shapes: Iterable[RankShape]) -> None:
        """Takes what ranks have; once all have told it there are blocks to save and load.

        Raises UnsupportedError when they do not fit together.
        """
        self._shapes |= {shape.rank: shape for shape in shapes}
        if len(self._shapes) == self._engine.num_ranks and self._engine.namespace is None:
            self._engine.attach_ranks(list(self._shapes.values()))

    def take_report(self, report: Any) -> None:
        """Brings what ranks answered to the store; a report of vLLM's own has no answers."""
        store = self._engine.store
        if not isinstance(report, RankReport) or store is None:
            return
        self.add_shapes(report.shapes)
        self._engine.failed_requests |= report.failed_requests
        for answer in report.answers:
            try:
                store.finish_plan(answer)
            except KvtierError as error:
                logger.warning("the answer of rank %d does not fit: %s", answer.rank, error)
                # Or its slots would be kept for ever.
                with contextlib.suppress(KvtierError):
                    store.finish_plan(replace(answer, status=FAILED, **_NOTHING_MOVED))

    def _begin(self, job_id: int, spec: LoadSpec | SaveSpec) -> None:
        """Starts a transfer; a group of it that cannot be planned has no plans."""
        transfer = self._transfers[job_id] = PlannedTransfer([])
        if spec.generation != self._engine.generation:
            return
        for group, entry in zip(self._engine.groups, spec.groups, strict=False):
            try:
                job = self._plan_job(group, entry, spec)
            except KvtierError as error:
                logger.warning("a transfer was not planned: %s", error)
            else:
                if job is not None:
                    transfer.jobs.append(job)

    def _plan_job(
        self, group: StoredGroup, entry: Any, spec: LoadSpec | SaveSpec
    ) -> PlannedJob[Any] | None:
        namespace = group.namespace
        if isinstance(spec, LoadSpec):
            if not len(entry):
                return None
            num_ranks = self._engine.num_ranks
            return namespace.plan_load(entry, num_ranks=num_ranks, request=spec.request_id)
        save: GroupSave = entry
        if not len(save.keys):
            return None
        return namespace.plan_save(
            save.keys,
            num_ranks=len(namespace.part_bytes),
            parent=save.parent,
            chain=save.is_chain,
            request=spec.request_id,
        )

    def _cancel_all(self) -> None:
        """Ends what is planned. Ranks that have begun end it themselves: see RankWorker.receive."""
        for transfer in self._transfers.values():
            for job in transfer.jobs:
                job.cancel()
