"""Job: a put, get, save or load that goes on in the background. Thread-safe."""

from __future__ import annotations

import math
from typing import Final, Generic, TypeVar, cast

import numpy as np

from kvtier import _core
from kvtier.call_arguments import check_flag, check_seconds
from kvtier.engine_streams import parse_stream
from kvtier.errors import TimeoutError, UsageError
from kvtier.outcome import Outcome
from kvtier.results import I64, U8, GetResult, LoadResult, PlannedLoadResult, PutResult

Result = TypeVar("Result", PutResult, GetResult, LoadResult, PlannedLoadResult)

_PAGED_KINDS: Final = ("save", "load")
_OUTCOMES: Final = {int(outcome): outcome for outcome in Outcome}


class Job(Generic[Result]):
    """Made by Namespace.put_async() and get_async(), and by save() and load() of paged tensors; a
    finished one also comes from store.poll().

    The buffers of the call belong to the job until its end was observed by wait(), poll(), done()
    or cancel(wait=True): until then nobody may write to the data of a put, nor use the `out` of a
    get. They stay alive meanwhile, also when the job itself is dropped.

    Nothing needs to be polled or waited for; a job ends by its own deadline. With asyncio::

        loop.add_reader(store.event_fd, lambda: [handle(job) for job in store.poll()])
    """

    __slots__ = ("__weakref__", "_core_job", "_result", "_store")

    def __init__(self, store: object, core_job: _core.Job) -> None:
        if not isinstance(core_job, _core.Job):
            raise UsageError("jobs are made by put_async and get_async")
        # Held so that the store stays open while a job of it is in use.
        self._store = store
        self._core_job = core_job
        self._result: Result | None = None

    def wait(self, timeout_s: float | None = None) -> Result:
        """Blocks until the job has ended, and returns its result.

        Raises TimeoutError after `timeout_s` (None: waits on): the job then goes on and still owns
        its buffers.
        """
        seconds = math.inf if timeout_s is None else check_seconds(timeout_s, "timeout_s")
        if self._result is None:
            outcomes = self._core_job.wait(seconds)
            self._result = cast("Result", self._make_result(outcomes))
        else:
            self._core_job.is_ended()  # In a forked child: ClosedError.
        return self._result

    def done(self) -> bool:
        """Says whether the job has ended. Does not block."""
        return self._core_job.is_ended()

    @property
    def result(self) -> Result:
        """Returns what the blocking call would have. Raises UsageError before the job has ended."""
        if not self._core_job.is_ended():
            raise UsageError("the job has not ended; use wait(), done() or store.poll()")
        return self.wait(0) if self._result is None else self._result

    def cancel(self, *, wait: bool = False, timeout_s: float | None = None) -> bool:
        """Asks the job to end; True: it has, and nobody touches its buffers any more.

        Blocks that are not done become CANCELLED (in a get with prefix=True MISS after the first).
        A put cancelled before its bytes were copied leaves its new keys absent; nothing that was
        stored before is removed. Does not block, unless `wait`: then until the job has ended or
        `timeout_s` is over (False).
        """
        is_waiting = check_flag(wait, "wait")
        self._core_job.cancel()
        if not is_waiting:
            return self._core_job.is_ended()
        try:
            self.wait(timeout_s)
        except TimeoutError:
            return False
        return True

    def wait_on(self, stream: object, timeout_s: float | None = None) -> None:
        """Orders work that is put on `stream` from now on after the last byte of a save or load.

        stream: an int, or an object of torch, CuPy or others, of the tensors' device.
        Blocks only until the job's copies were handed to the device; for blocks on disk that is
        when they were read. For tensors in CPU memory, which have no streams, until the job has
        ended. Raises TimeoutError after `timeout_s` (None: waits on), UsageError (a
        put or get; a stream of another device).
        """
        if self._core_job.kind not in _PAGED_KINDS:
            raise UsageError(f"a {self._core_job.kind} touches no device memory; use wait()")
        seconds = math.inf if timeout_s is None else check_seconds(timeout_s, "timeout_s")
        self._core_job.order_stream_after(parse_stream(stream), seconds)

    def _make_result(self, outcomes: U8) -> PutResult | GetResult | LoadResult | PlannedLoadResult:
        kind = self._core_job.kind
        if kind == "load":
            return load_result(outcomes, self._core_job.undefined_block_ids())
        if kind == "planned_load":
            return planned_load_result(outcomes, self._core_job.undefined_block_ids())
        return get_result(outcomes) if kind == "get" else put_result(outcomes)

    def __repr__(self) -> str:
        return f"Job(job_id={self._core_job.job_id}, kind={self._core_job.kind!r})"


def put_result(outcomes: U8) -> PutResult:
    """Returns the result of a put from the core's outcomes, uint8[n]."""
    is_refused = outcomes != int(Outcome.DONE)
    num_accepted = int(is_refused.argmax()) if is_refused.any() else len(outcomes)
    return PutResult(num_accepted=num_accepted, outcomes=_as_outcomes(outcomes))


def get_result(outcomes: U8) -> GetResult:
    """Returns the result of a get from the core's outcomes, uint8[n]."""
    mask = outcomes == int(Outcome.DONE)
    return GetResult(
        num_blocks=int(np.count_nonzero(mask)), mask=mask, outcomes=_as_outcomes(outcomes)
    )


def load_result(outcomes: U8, undefined_block_ids: I64) -> LoadResult:
    """Returns the result of a load from the core's outcomes, uint8[n]."""
    got = get_result(outcomes)
    return LoadResult(
        num_blocks=got.num_blocks,
        mask=got.mask,
        outcomes=got.outcomes,
        undefined_block_ids=undefined_block_ids,
    )


def planned_load_result(outcomes: U8, undefined_indices: I64) -> PlannedLoadResult:
    """Returns the result of a planned load from the core's outcomes, uint8[n]."""
    got = get_result(outcomes)
    return PlannedLoadResult(
        num_blocks=got.num_blocks,
        mask=got.mask,
        outcomes=got.outcomes,
        undefined_indices=undefined_indices,
    )


def _as_outcomes(outcomes: U8) -> list[Outcome]:
    return [_OUTCOMES[value] for value in outcomes.tolist()]
