"""Jobs of the core whose start was interrupted. Thread-safe."""

from __future__ import annotations

from typing import Final

from kvtier import _core
from kvtier.errors import TimeoutError

_END_TIMEOUT_S: Final = 30.0


def end_lost_job(core_job: _core.Job | _core.WorkerJob, error: BaseException) -> None:
    """Ends a job that its caller will never know of; then nobody touches its buffers any more.

    For whatever came between the core's start of a job and the caller: a signal, no memory. Does
    nothing for a job that was not started. Raises TimeoutError: the job goes on all the same.
    """
    if not core_job.has_begun():
        return
    core_job.cancel()
    try:
        core_job.wait(_END_TIMEOUT_S)
    except TimeoutError:
        raise TimeoutError(
            f"a job was started and its call interrupted ({type(error).__name__}), and it has not "
            f"ended within {_END_TIMEOUT_S:.0f} s: its buffers and rows are still in use; close "
            "the store or the view before they are used again"
        ) from error
