"""Waiting no longer than a deadline, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

Value = TypeVar("Value")


class DeadlineError(Exception):
    """What was waited for took longer."""


async def within(timeout_s: float, work: Coroutine[None, None, Value]) -> Value:
    """Returns what the work returns; ends it and raises DeadlineError when it takes longer.

    A cancellation always gets through: `asyncio.wait_for` loses one that comes just as the work
    ends, and a command that was told to end would go on.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
        if not done:
            raise DeadlineError(f"not done within {timeout_s:g} s")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
