"""Sends the prompts of a warm-up, some at a time, and counts what came of them. One event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvtier.http_stream import ServerError
from kvtier.warmup.journal import Journal
from kvtier.warmup.prompt_file import Prompt
from kvtier.warmup.server_model import RefusedError, ServerModel, UnusableError

RETRY_PAUSES_S: Final = (1.0, 4.0, 16.0)
"""Before each further try of a prompt."""


@dataclass(kw_only=True)
class Outcome:
    """What became of the prompts of one run."""

    num_done: int = 0
    num_tokens: int = 0
    refused: list[tuple[Prompt, str]] = field(default_factory=list)
    """Those that the server will not take, and why."""
    failure: str | None = None
    """Why the run ended early; the prompts that are left are worth another run."""

    @property
    def is_finished(self) -> bool:
        """Returns whether no other run is needed for these prompts.

        A server that refuses all of them is more likely to be the wrong one.
        """
        return self.failure is None and (self.num_done > 0 or not self.refused)


async def run_warmup(
    model: ServerModel,
    prompts: Sequence[Prompt],
    *,
    concurrency: int,
    journal: Journal | None,
    on_done: Callable[[Outcome], None],
    pauses_s: Sequence[float] = RETRY_PAUSES_S,
) -> Outcome:
    """Sends each prompt once it is its turn, in their order, at most `concurrency` at a time.

    A prompt that fails is tried again after each pause; when that is of no use either the run ends,
    as the server is in trouble. It ends at once where no prompt can be computed.
    """
    outcome = Outcome()
    waiting = iter(prompts)
    is_over = asyncio.Event()

    async def work() -> None:
        for prompt in waiting:
            if is_over.is_set():
                return
            try:
                # Not in one statement: others add to the sum while this one waits.
                num_tokens = await _compute(model, prompt, pauses_s, is_over)
            except RefusedError as error:
                outcome.refused.append((prompt, str(error)))
            except (ServerError, UnusableError) as error:
                outcome.failure = outcome.failure or f"line {prompt.line}: {error}"
                is_over.set()
                return
            else:
                outcome.num_done += 1
                outcome.num_tokens += num_tokens
                if journal is not None:
                    journal.note(prompt.digest)
            on_done(outcome)

    await asyncio.gather(*(work() for _ in range(min(concurrency, len(prompts)))))
    return outcome


async def _compute(
    model: ServerModel, prompt: Prompt, pauses_s: Sequence[float], is_over: asyncio.Event
) -> int:
    for pause_s in pauses_s:
        try:
            return await model.compute(prompt)
        except ServerError:
            # Others may find out meanwhile that the server is gone.
            await asyncio.wait({asyncio.ensure_future(is_over.wait())}, timeout=pause_s)
            if is_over.is_set():
                raise
    return await model.compute(prompt)
