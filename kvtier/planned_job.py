"""PlannedJob: a save or load whose moves worker processes carry out. Thread-safe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtier.block_plan import BlockPlan
from kvtier.call_arguments import check_seconds
from kvtier.job import Job, Result

if TYPE_CHECKING:
    from kvtier._core_fields import PlanFields


class PlannedJob(Job[Result]):
    """Made by Namespace.plan_save() and plan_load().

    The caller brings each plan to the ranks that it is for, by whatever channel it has, and their
    answers to BlockStore.finish_plan(). A plan that was taken keeps its slots until every rank has
    answered or was abandoned, however long that takes: also when the job is cancelled or late.
    Plans of blocks in host memory are there at once, those of blocks on disk as they are read::

        while not job.are_plans_exhausted:
            for plan in job.take_plans(timeout_s=1.0):
                send_to_workers(plan)
    """

    __slots__ = ()

    def take_plans(self, timeout_s: float = 0.0) -> list[BlockPlan]:
        """Returns the plans that nobody took yet, each once.

        Blocks until there is one, at most `timeout_s`, and not when there will be no more.
        """
        seconds = check_seconds(timeout_s, "timeout_s")
        taken: list[PlanFields] = []
        try:
            self._core_job.take_plans(seconds, taken)
            return [BlockPlan(**fields) for fields in taken]
        except BaseException:
            # Say a signal: the caller will not get them, and nobody could take them again.
            if taken:
                self._core_job.put_back_plans([fields["plan_id"] for fields in taken])
            raise

    @property
    def are_plans_exhausted(self) -> bool:
        """Says whether take_plans() has given all that there will ever be."""
        return self._core_job.are_plans_exhausted()

    def __repr__(self) -> str:
        return f"PlannedJob(job_id={self._core_job.job_id}, kind={self._core_job.kind!r})"
