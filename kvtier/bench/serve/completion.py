"""One streamed completion and its times. Used from one event loop."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from kvtier.http_stream import HttpAnswer, ServerError, ServerUrl, open_exchange

PATH = "/v1/completions"
_EVENT = b"data:"
_DONE = "[DONE]"
_SHOWN_CHARACTERS = 300
_STREAMED_TOKENS_MIN = 16
"""vLLM itself puts what a few steps gave into one event when its server comes late to tell it."""


@dataclass(kw_only=True)
class Answer:
    """What came back. Times are from before the connection was made."""

    ttft_s: float | None = None
    """None: no token came."""
    duration_s: float = 0.0
    num_tokens: int = 0
    num_events: int = 0
    """How many pieces the tokens came in."""
    token_ids: list[int] = field(default_factory=list)
    """Empty where the server sends text only."""
    text: str = ""
    failure: str | None = None
    is_timeout: bool = False

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first; None of fewer than two."""
        if self.ttft_s is None or self.num_tokens < 2:
            return None
        return (self.duration_s - self.ttft_s) / (self.num_tokens - 1)

    @property
    def output(self) -> tuple[int, ...] | str:
        """What has to be equal in all modes."""
        return tuple(self.token_ids) or self.text


@dataclass(frozen=True, kw_only=True)
class Client:
    """A model at a server, and how long the server may go without sending a token."""

    server: ServerUrl
    model: str
    timeout_s: float

    async def ask(self, prompt: Sequence[int], num_output_tokens: int) -> Answer:
        """Returns the answer; whatever went wrong stands in it."""
        body = json.dumps(
            {
                "model": self.model,
                "prompt": list(prompt),
                "max_tokens": num_output_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
                "return_token_ids": True,
            }
        ).encode()
        answer = Answer()
        started_ns = time.perf_counter_ns()
        stream = asyncio.create_task(self._stream(body, answer, started_ns))
        try:
            if await self._is_stalled(stream, answer, started_ns):
                answer.is_timeout = True
                answer.failure = f"no token within {self.timeout_s:g} s (--timeout-s)"
                answer.duration_s = _seconds_since(started_ns)
            else:
                stream.result()
                answer.failure = _find_fault(answer, num_output_tokens)
        except ServerError as error:
            answer.failure = str(error)
        finally:
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)
        return answer

    async def _is_stalled(
        self, stream: asyncio.Task[None], answer: Answer, started_ns: int
    ) -> bool:
        """Waits for the end of the stream, or until it brought no token for too long."""
        while True:
            silent_s = _seconds_since(started_ns) - answer.duration_s
            if silent_s >= self.timeout_s:
                return True
            done, _ = await asyncio.wait({stream}, timeout=self.timeout_s - silent_s)
            if done:
                return False

    async def _stream(self, body: bytes, answer: Answer, started_ns: int) -> None:
        async with open_exchange(self.server, "POST", PATH, body) as http:
            await _check_head(http)
            async for event in _events(http):
                if _take_event(event, answer):
                    answer.duration_s = _seconds_since(started_ns)
                    answer.ttft_s = answer.ttft_s or answer.duration_s


def _seconds_since(started_ns: int) -> float:
    return (time.perf_counter_ns() - started_ns) / 1e9


async def _check_head(http: HttpAnswer) -> None:
    """Raises ServerError unless a stream of events follows."""
    if http.status != 200:
        text = " ".join((await http.text()).split())
        raise ServerError(f"HTTP {http.status}: {text[:_SHOWN_CHARACTERS]}")
    if http.content_type != "text/event-stream":
        raise ServerError(
            f"the server does not stream: it answers with {http.content_type or 'no type'}; times"
            "  to the first token need a stream of events"
        )


async def _events(http: HttpAnswer) -> AsyncIterator[dict[str, object]]:
    """Yields the events' objects. Raises ServerError unless the server says that it has ended."""
    async for line in http.lines():
        if not line.startswith(_EVENT):
            # Empty lines, comments and other fields.
            continue
        text = line.removeprefix(_EVENT).strip().decode(errors="replace")
        if text == _DONE:
            return
        try:
            event = json.loads(text)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            raise ServerError(f"the stream holds what is no event: {text[:_SHOWN_CHARACTERS]!r}")
        yield event
    raise ServerError("the stream ended before it said so")


def _take_event(event: dict[str, object], answer: Answer) -> bool:
    """Adds what an event brings; True when there are tokens in it."""
    if "error" in event:
        raise ServerError(f"the server reports: {str(event['error'])[:_SHOWN_CHARACTERS]}")
    usage, choices = event.get("usage"), event.get("choices")
    if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
        answer.num_tokens = usage["completion_tokens"]
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return False
    token_ids, text = choices[0].get("token_ids"), choices[0].get("text")
    new_ids = token_ids if isinstance(token_ids, list) else []
    new_text = text if isinstance(text, str) else ""
    answer.token_ids += new_ids
    answer.text += new_text
    if not new_ids and not new_text:
        return False
    answer.num_events += 1
    answer.num_tokens = max(answer.num_tokens, len(answer.token_ids), answer.num_events)
    return True


def _find_fault(answer: Answer, num_output_tokens: int) -> str | None:
    if answer.ttft_s is None:
        return "the stream held no token"
    if answer.num_tokens >= _STREAMED_TOKENS_MIN and answer.num_events == 1:
        return (
            f"the server does not stream: all {answer.num_tokens} tokens came in one piece; "
            "something between may buffer them"
        )
    if answer.num_tokens != num_output_tokens:
        return f"asked for {num_output_tokens} tokens, got {answer.num_tokens}"
    return None
