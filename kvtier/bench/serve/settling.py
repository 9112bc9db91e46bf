"""What an engine has counted, once it has told of everything. Used from one event loop."""

from __future__ import annotations

import dataclasses
import time

from kvtier.bench.serve.completion import Client
from kvtier.bench.serve.engine_metrics import EngineCounters, parse_counters
from kvtier.http_stream import ServerError, ServerUrl, fetch_text

COUNTED_S = 1.2
"""A little more than the time for which kvtier's counters stand still in vLLM's metrics."""
SETTLED_S_MAX = 30.0
_METRICS_S_MAX = 30.0
# Shorter than any block: nothing of it is saved, or found again.
_SHORT_PROMPT = tuple(range(16, 24))
_SHORT_TOKENS = 1


class Settler:
    """Counts what runs have done to one server; its own questions are left out."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._num_asked = 0

    async def settle(self) -> EngineCounters | None:
        """Asks short questions until counts are up to date and what waits for a disk was written.

        An engine tells only while it works. Returns None where the server shows no counters of
        vLLM's, what stands there after SETTLED_S_MAX when a disk takes longer. Raises ServerError.
        """
        started_s = time.perf_counter()
        counters = await count_now(self._client.server)
        while counters is not None:
            passed_s = time.perf_counter() - started_s
            is_counted = passed_s >= COUNTED_S
            answer = await self._client.ask(_SHORT_PROMPT, _SHORT_TOKENS)
            if answer.failure is not None:
                raise ServerError(f"between runs: {answer.failure}")
            self._num_asked += 1
            if is_counted:
                counters = await count_now(self._client.server)
                if counters is None or not counters.backlog_bytes or passed_s >= SETTLED_S_MAX:
                    break
        return None if counters is None else self._leave_out_asked(counters)

    def _leave_out_asked(self, counters: EngineCounters) -> EngineCounters:
        return dataclasses.replace(
            counters,
            prompt_tokens=counters.prompt_tokens - self._num_asked * len(_SHORT_PROMPT),
            generated_tokens=counters.generated_tokens - self._num_asked * _SHORT_TOKENS,
        )


async def count_now(server: ServerUrl) -> EngineCounters | None:
    """Returns the counters; None where the server shows none of vLLM's. Raises ServerError."""
    status, text = await fetch_text(server, "/metrics", timeout_s=_METRICS_S_MAX)
    return parse_counters(text) if status == 200 else None
