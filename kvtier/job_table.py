"""JobTable: the jobs of a store that somebody keeps. Thread-safe."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Final, TypeAlias

from kvtier import _core
from kvtier.job import Job
from kvtier.planned_job import PlannedJob
from kvtier.results import GetResult, LoadResult, PlannedLoadResult, PutResult
from kvtier.started_job import end_lost_job

_PLANNED_KINDS: Final = ("planned_save", "planned_load")

AnyJob: TypeAlias = Job[PutResult] | Job[GetResult] | Job[LoadResult] | Job[PlannedLoadResult]


class JobTable:
    """The jobs that somebody keeps, so that poll() lists the very objects. Thread-safe."""

    def __init__(self) -> None:
        # Never taken in a forked child: there the core refuses first. Reentrant: a finalizer that
        # runs meanwhile may poll.
        self._lock = threading.RLock()
        self._jobs: weakref.WeakValueDictionary[int, AnyJob] = weakref.WeakValueDictionary()

    def start(
        self,
        store: object,
        core_store: _core.Store,
        submit: Callable[[_core.Job], None],
        *,
        is_planned: bool = False,
    ) -> AnyJob:
        """Returns the job that `submit` starts.

        The objects are made first, and a job is ended again whose caller would not get it.
        """
        core_job = _core.Job(core_store)
        made: AnyJob = (PlannedJob if is_planned else Job)(store, core_job)
        try:
            submit(core_job)
            with self._lock:
                # Somebody who polls may have been first.
                return self._jobs.setdefault(core_job.job_id, made)
        except BaseException as error:
            end_lost_job(core_job, error)
            raise

    def find_or_make(self, store: object, core_job: _core.Job) -> AnyJob:
        """Returns the job around `core_job`; one that was dropped is made anew."""
        # Made before: with the lock held nothing that collects garbage may run.
        is_planned = core_job.kind in _PLANNED_KINDS
        made: AnyJob = (PlannedJob if is_planned else Job)(store, core_job)
        with self._lock:
            return self._jobs.setdefault(core_job.job_id, made)
