"""Requests of a workload, made from a seed: the same in every process and for every mode. Pure."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvtier.bench.serve.trace_prompts import TraceChoice, TracePrompt, read_prompts
from kvtier.errors import ConfigError

RANDOM = "random"
CONVERSATIONS = "conversations"
DOCUMENTS = "documents"
TRACE = "trace"

QUESTION_TOKENS = 32
FIRST_TOKEN = 16
"""Lower ids are special in many models: some would end a prompt's template or an answer."""
VOCABULARY_TOKENS_MIN = 256
_TURN_SHARE = 8
_WARM_UP = "warm-up"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One request: token ids that the session has not said before, or all of a prompt."""

    tokens: tuple[int, ...]
    num_output_tokens: int
    arrival_s: float = 0.0
    """Not sent before that time after the start."""
    is_revisit: bool = False
    """Its prompt, or the beginning of it, was asked before in this run."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """Requests that follow one another."""

    turns: tuple[Turn, ...]
    is_conversation: bool = False
    """Each prompt begins with all that was said before, answers too."""


@dataclass(frozen=True, kw_only=True)
class WorkloadShape:
    """What a workload is made of. Tokens are those of one request."""

    kind: str
    num_prompts: int
    """Prompts, conversations, documents, or requests of a trace."""
    num_visits: int
    input_tokens: int
    output_tokens: int
    vocabulary_tokens: int
    seed: int = 0
    trace: TraceChoice | None = None


DEFAULTS = {
    RANDOM: WorkloadShape(
        kind=RANDOM,
        num_prompts=32,
        num_visits=1,
        input_tokens=4096,
        output_tokens=1024,
        vocabulary_tokens=10_000,
    ),
    CONVERSATIONS: WorkloadShape(
        kind=CONVERSATIONS,
        num_prompts=32,
        num_visits=4,
        input_tokens=4096,
        output_tokens=128,
        vocabulary_tokens=10_000,
    ),
    DOCUMENTS: WorkloadShape(
        kind=DOCUMENTS,
        num_prompts=16,
        num_visits=4,
        input_tokens=8192,
        output_tokens=128,
        vocabulary_tokens=10_000,
    ),
    TRACE: WorkloadShape(
        kind=TRACE,
        num_prompts=200,
        num_visits=1,
        input_tokens=32_768,
        output_tokens=128,
        vocabulary_tokens=10_000,
    ),
}


def make_sessions(shape: WorkloadShape, run: int) -> list[Session]:
    """Returns the requests of a run: of equal shape in all, of other tokens in each.

    Raises ConfigError for a shape that makes no request, TraceError for a trace that can't be read.
    """
    _check(shape)
    generator = random.Random(f"{shape.kind} {shape.seed} {run}")
    sessions = _MAKERS[shape.kind](shape, generator)
    if not sessions:
        raise ConfigError(
            f"workload: no request of the trace fits into {shape.input_tokens} input tokens; "
            "raise --input-tokens"
        )
    return sessions


def make_warm_up(shape: WorkloadShape, num_requests: int, number: int = 0) -> list[Session]:
    """Returns requests of their own: what an engine does once must not fall into a run."""
    generator = random.Random(f"{_WARM_UP} {shape.seed} {number}")
    return [
        Session(turns=(_turn(_tokens(generator, shape, shape.input_tokens), shape),))
        for _ in range(num_requests)
    ]


def longest_request_tokens(shape: WorkloadShape) -> int:
    """Returns the most tokens that prompt and answer of a request have together."""
    if shape.kind != CONVERSATIONS:
        return shape.input_tokens + shape.output_tokens
    later = shape.num_visits - 1
    added = _later_turn_tokens(shape) + shape.output_tokens
    return shape.input_tokens + shape.output_tokens + later * added


def count_distinct_tokens(sessions: Sequence[Session]) -> int:
    """Returns how many tokens an engine would have to keep to compute none twice."""
    prefixes: set[int] = set()
    num_tokens = 0
    for session in sessions:
        num_tokens += sum(turn.num_output_tokens for turn in session.turns)
        if session.is_conversation:
            num_tokens += sum(len(turn.tokens) for turn in session.turns)
            continue
        for turn in session.turns:
            prefix = 0
            for start in range(0, len(turn.tokens), QUESTION_TOKENS):
                part = turn.tokens[start : start + QUESTION_TOKENS]
                prefix = hash((prefix, part))
                num_tokens += 0 if prefix in prefixes else len(part)
                prefixes.add(prefix)
    return num_tokens


def with_input_tokens(shape: WorkloadShape, input_tokens: int) -> WorkloadShape:
    return dataclasses.replace(shape, input_tokens=input_tokens)


def _make_random(shape: WorkloadShape, generator: random.Random) -> list[Session]:
    prompts = [_tokens(generator, shape, shape.input_tokens) for _ in range(shape.num_prompts)]
    return [
        Session(turns=(_turn(prompt, shape, is_revisit=visit > 0),))
        for visit in range(shape.num_visits)
        for prompt in prompts
    ]


def _make_conversations(shape: WorkloadShape, generator: random.Random) -> list[Session]:
    def make_turns() -> tuple[Turn, ...]:
        first = _turn(_tokens(generator, shape, shape.input_tokens), shape)
        later = (
            _turn(_tokens(generator, shape, _later_turn_tokens(shape)), shape, is_revisit=True)
            for _ in range(shape.num_visits - 1)
        )
        return (first, *later)

    return [Session(turns=make_turns(), is_conversation=True) for _ in range(shape.num_prompts)]


def _make_documents(shape: WorkloadShape, generator: random.Random) -> list[Session]:
    room = shape.input_tokens - QUESTION_TOKENS
    documents = [_tokens(generator, shape, room) for _ in range(shape.num_prompts)]
    return [
        Session(
            turns=(
                _turn(
                    document + _tokens(generator, shape, QUESTION_TOKENS),
                    shape,
                    is_revisit=visit > 0,
                ),
            )
        )
        for visit in range(shape.num_visits)
        for document in documents
    ]


def _make_trace(shape: WorkloadShape, generator: random.Random) -> list[Session]:
    assert shape.trace is not None
    prompts = read_prompts(shape.trace, shape.num_prompts)
    fitting = [it for it in prompts if it.num_tokens <= shape.input_tokens]
    salt = generator.random()

    def make_turn(prompt: TracePrompt) -> Turn:
        tokens: list[int] = []
        for part in prompt.parts:
            of_part = random.Random(f"{salt} {part.block_id!r}")
            tokens += _tokens(of_part, shape, part.num_tokens)
        return Turn(
            tokens=tuple(tokens),
            num_output_tokens=min(prompt.num_output_tokens, shape.output_tokens),
            arrival_s=prompt.arrival_s,
            is_revisit=prompt.is_revisit,
        )

    return [Session(turns=(make_turn(prompt),)) for prompt in fitting]


_MAKERS: dict[str, Callable[[WorkloadShape, random.Random], list[Session]]] = {
    RANDOM: _make_random,
    CONVERSATIONS: _make_conversations,
    DOCUMENTS: _make_documents,
    TRACE: _make_trace,
}


def _check(shape: WorkloadShape) -> None:
    if shape.vocabulary_tokens < VOCABULARY_TOKENS_MIN:
        raise ConfigError(
            f"vocabulary-tokens: {shape.vocabulary_tokens} makes prompts too much alike; "
            f"give {VOCABULARY_TOKENS_MIN} or more"
        )
    if shape.kind == DOCUMENTS and shape.input_tokens <= 2 * QUESTION_TOKENS:
        raise ConfigError(
            f"input-tokens: {shape.input_tokens} is no long document; questions of "
            f"{QUESTION_TOKENS} tokens stand in it"
        )
    if shape.kind == TRACE and shape.trace is None:
        raise ConfigError("workload: trace needs a file; give --trace FILE")


def _turn(tokens: tuple[int, ...], shape: WorkloadShape, *, is_revisit: bool = False) -> Turn:
    return Turn(tokens=tokens, num_output_tokens=shape.output_tokens, is_revisit=is_revisit)


def _later_turn_tokens(shape: WorkloadShape) -> int:
    return max(1, shape.input_tokens // _TURN_SHARE)


def _tokens(generator: random.Random, shape: WorkloadShape, num_tokens: int) -> tuple[int, ...]:
    return tuple(generator.choices(range(FIRST_TOKEN, shape.vocabulary_tokens), k=num_tokens))
