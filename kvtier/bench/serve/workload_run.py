"""A workload on one server: so many requests at once, sessions in order. One event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvtier.bench.serve.completion import Answer, Client
from kvtier.bench.serve.workload import Session, Turn
from kvtier.deadline import DeadlineError, within


@dataclass(frozen=True, kw_only=True)
class AskedTurn:
    """A turn and its answer."""

    turn: Turn
    answer: Answer


@dataclass(kw_only=True)
class WorkloadRecord:
    """What a run brought; by (session, turn). Turns that were not asked are not there."""

    num_requests: int
    seconds: float = 0.0
    asked: dict[tuple[int, int], AskedTurn] = field(default_factory=dict)
    error: str | None = None
    """Why it was ended early."""

    @property
    def answers(self) -> list[Answer]:
        return [it.answer for it in self.asked.values()]

    @property
    def num_timeouts(self) -> int:
        return sum(it.is_timeout for it in self.answers)

    @property
    def num_missing(self) -> int:
        return self.num_requests - sum(it.failure is None for it in self.answers)


async def run_workload(
    client: Client, sessions: Sequence[Session], *, concurrency: int
) -> WorkloadRecord:
    """Asks everything; ends early at a failure that is no timeout, or when only timeouts come."""
    run = _WorkloadRun(client, concurrency)
    record = WorkloadRecord(num_requests=sum(len(session.turns) for session in sessions))
    started_s = time.perf_counter()

    async def ask_all() -> None:
        await asyncio.gather(*(run.ask_session(*it, record) for it in enumerate(sessions)))

    everything = asyncio.create_task(ask_all())
    ended = asyncio.create_task(run.wait_for_failure())
    try:
        await asyncio.wait({everything, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not run.failed.is_set():
            await everything
    finally:
        everything.cancel()
        ended.cancel()
        await asyncio.gather(everything, ended, return_exceptions=True)
    record.seconds = time.perf_counter() - started_s
    record.error = run.error
    return record


class _WorkloadRun:
    """What the sessions of one run share."""

    def __init__(self, client: Client, concurrency: int) -> None:
        self.failed = asyncio.Event()
        self.error: str | None = None
        self._client = client
        self._concurrency = concurrency
        # First come, first served: turns of one session do not follow at once while others wait.
        self._places = asyncio.Semaphore(concurrency)
        self._started_s = time.perf_counter()
        self._timeouts_in_a_row = 0

    async def wait_for_failure(self) -> None:
        await self.failed.wait()

    async def ask_session(self, index: int, session: Session, record: WorkloadRecord) -> None:
        said: list[int] = []
        for turn_index, turn in enumerate(session.turns):
            await self._wait_for_arrival(turn)
            prompt = [*said, *turn.tokens]
            async with self._places:
                answer = await self._client.ask(prompt, turn.num_output_tokens)
            record.asked[index, turn_index] = AskedTurn(turn=turn, answer=answer)
            self._judge(answer)
            if answer.failure is not None:
                # What would follow hangs on the answer.
                return
            if session.is_conversation:
                said = [*prompt, *answer.token_ids]

    async def _wait_for_arrival(self, turn: Turn) -> None:
        left_s = turn.arrival_s - (time.perf_counter() - self._started_s)
        if left_s > 0:
            with contextlib.suppress(DeadlineError):
                await within(left_s, self.wait_for_failure())

    def _judge(self, answer: Answer) -> None:
        if answer.failure is None:
            self._timeouts_in_a_row = 0
            return
        self._timeouts_in_a_row += answer.is_timeout
        if not answer.is_timeout:
            self._fail(answer.failure)
        elif self._timeouts_in_a_row >= self._concurrency:
            self._fail(
                f"the server stalls: {self._timeouts_in_a_row} requests in a row had "
                f"{answer.failure}"
            )

    def _fail(self, reason: str) -> None:
        self.error = self.error or reason
        self.failed.set()
