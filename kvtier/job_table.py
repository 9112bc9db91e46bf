"""JobTable: the jobs of a store that somebody keeps. Thread-safe."""

from __future__ import annotations

import threading
import weakref
from typing import Final, TypeAlias

from kvtier import _core
from kvtier.job import Job
from kvtier.planned_job import PlannedJob
from kvtier.results import GetResult, LoadResult, PlannedLoadResult, PutResult

_PLANNED_KINDS: Final = ("planned_save", "planned_load")

AnyJob: TypeAlias = Job[PutResult] | Job[GetResult] | Job[LoadResult] | Job[PlannedLoadResult]


class JobTable:
    """The jobs that somebody keeps, so that poll() lists the very objects. Thread-safe."""

    def __init__(self) -> None:
        # Never taken in a forked child: there the core refuses first.
        self._lock = threading.Lock()
        self._jobs: weakref.WeakValueDictionary[int, AnyJob] = weakref.WeakValueDictionary()

    def find_or_make(self, store: object, core_job: _core.Job) -> AnyJob:
        """Returns the job around `core_job`; one that was dropped is made anew."""
        with self._lock:
            job = self._jobs.get(core_job.job_id)
            if job is None:
                is_planned = core_job.kind in _PLANNED_KINDS
                made: AnyJob = (PlannedJob if is_planned else Job)(store, core_job)
                job = self._jobs[core_job.job_id] = made
            return job
