"""RankPlanner: turns vLLM's transfers into plans for ranks that run in processes of their own.

Not thread-safe: used by the scheduler's thread only.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
)

from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.rank_messages import RankMetadata, RankReport
from kvtier.adapters.vllm.rank_setup import RankShape
from kvtier.adapters.vllm.transfer_specs import LoadSpec, SaveSpec
from kvtier.block_plan import FAILED
from kvtier.core_log import logger
from kvtier.errors import KvtierError
from kvtier.planned_job import PlannedJob

_NOTHING_MOVED: Final[dict[str, Any]] = {
    "first_part": 0,
    "num_parts": 0,
    "checksums": np.empty(0, dtype=np.uint64),
    "undefined_indices": np.empty(0, dtype=np.int64),
}


class RankPlanner:
    """Makes a plan job of each transfer, and brings the ranks' answers to the store."""

    def __init__(self, engine: EngineStore) -> None:
        self._engine = engine
        # Job of vLLM -> the store's; until the store has it behind itself.
        self._jobs: dict[int, PlannedJob[Any]] = {}
        self._exhausted: set[int] = set()
        self._shapes: dict[int, RankShape] = {}
        engine.abandon_transfers = self._cancel_all

    def plan(self, metadata: OffloadingConnectorMetadata) -> RankMetadata:
        """Returns the step's metadata with all plans that can be sent by now."""
        exhausted = []
        for job_id, entry in metadata.load_jobs.items():
            exhausted += self._begin(job_id, entry.src_spec)
        for job_id, entry in metadata.store_jobs.items():
            exhausted += self._begin(job_id, entry.dst_spec)
        plans = []
        for job_id, job in list(self._jobs.items()):
            if job_id not in self._exhausted:
                plans += [(job_id, plan) for plan in job.take_plans()]
                if job.are_plans_exhausted:
                    exhausted.append(job_id)
                    self._exhausted.add(job_id)
            elif job.done():
                del self._jobs[job_id]
                self._exhausted.discard(job_id)
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
                store.finish_plan(replace(answer, status=FAILED, **_NOTHING_MOVED))

    def _begin(self, job_id: int, spec: Any) -> list[int]:
        """Starts a job; returns it when there will be no plans for it."""
        namespace = self._engine.namespace
        if namespace is not None and spec.generation == self._engine.generation:
            try:
                self._jobs[job_id] = self._plan_job(spec)
            except KvtierError as error:
                logger.warning("a transfer was not planned: %s", error)
            else:
                return []
        return [job_id]

    def _plan_job(self, spec: LoadSpec | SaveSpec) -> PlannedJob[Any]:
        namespace = self._engine.namespace
        assert namespace is not None
        if isinstance(spec, LoadSpec):
            num_ranks = self._engine.num_ranks
            (keys,) = spec.groups
            return namespace.plan_load(keys, num_ranks=num_ranks, request=spec.request_id)
        (save,) = spec.groups
        return namespace.plan_save(
            save.keys,
            num_ranks=len(namespace.part_bytes),
            parent=save.parent,
            chain=save.is_chain,
            request=spec.request_id,
        )

    def _cancel_all(self) -> None:
        """Ends what is planned. Ranks that have begun end it themselves: see RankWorker.receive."""
        for job in self._jobs.values():
            job.cancel()
