"""Workloads: equal from equal seeds, new in each run, of the lengths that were asked for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from kvtier.bench.serve.trace_prompts import TraceChoice
from kvtier.bench.serve.workload import (
    DEFAULTS,
    FIRST_TOKEN,
    WorkloadShape,
    count_distinct_tokens,
    longest_request_tokens,
    make_sessions,
    make_warm_up,
)
from kvtier.bench.trace import TraceError
from kvtier.errors import ConfigError

KINDS = ("random", "conversations", "documents")


def shape_of(kind: str, **changes: object) -> WorkloadShape:
    small: dict[str, object] = {
        "num_prompts": 3,
        "num_visits": 2,
        "input_tokens": 96,
        "output_tokens": 8,
        "vocabulary_tokens": 300,
    }
    return dataclasses.replace(DEFAULTS[kind], **{**small, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_and_a_run_give_one_workload(kind: str) -> None:
    shape = shape_of(kind)
    assert make_sessions(shape, 1) == make_sessions(shape, 1)
    assert make_sessions(shape, 1) != make_sessions(shape, 2)
    assert make_sessions(shape, 1) != make_sessions(dataclasses.replace(shape, seed=1), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_have_ids_of_the_vocabulary_and_their_length(kind: str) -> None:
    shape = shape_of(kind)
    turns = [turn for session in make_sessions(shape, 0) for turn in session.turns]
    assert len(turns) == 6
    assert sum(turn.is_revisit for turn in turns) == 3
    ids = {token for turn in turns for token in turn.tokens}
    assert min(ids) >= FIRST_TOKEN
    assert max(ids) < 300
    assert max(len(turn.tokens) for turn in turns) == 96


def test_a_warm_up_is_of_the_same_length_and_of_other_tokens() -> None:
    shape = shape_of("random")
    warm_up = make_warm_up(shape, 5)
    assert [len(session.turns[0].tokens) for session in warm_up] == [96] * 5
    prompts = {session.turns[0].tokens for session in make_sessions(shape, 0)}
    assert not prompts & {session.turns[0].tokens for session in warm_up}
    assert make_warm_up(shape, 1, 0) != make_warm_up(shape, 1, 1)


def test_a_document_is_asked_again_after_all_others_with_another_question() -> None:
    sessions = make_sessions(shape_of("documents"), 0)
    prompts = [session.turns[0].tokens for session in sessions]
    documents = [prompt[:64] for prompt in prompts]
    assert documents[:3] == documents[3:]
    assert len(set(documents)) == 3
    assert len(set(prompts)) == 6


def test_distinct_tokens_count_what_is_common_once() -> None:
    assert count_distinct_tokens(make_sessions(shape_of("random"), 0)) == 3 * 96 + 6 * 8
    documents = count_distinct_tokens(make_sessions(shape_of("documents"), 0))
    assert documents == 3 * 64 + 6 * 32 + 6 * 8
    conversations = count_distinct_tokens(make_sessions(shape_of("conversations"), 0))
    assert conversations == 3 * (96 + 12) + 6 * 8


def test_the_longest_request_of_a_conversation_has_all_before_it() -> None:
    assert longest_request_tokens(shape_of("random")) == 96 + 8
    assert longest_request_tokens(shape_of("conversations")) == 96 + 8 + 12 + 8


def write_trace(folder: Path, *requests: dict[str, object]) -> TraceChoice:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(it) + "\n" for it in requests))
    return TraceChoice(path=str(path), block_tokens=64, speed=2.0)


def test_a_trace_keeps_what_is_common_its_lengths_and_its_pace(tmp_path: Path) -> None:
    choice = write_trace(
        tmp_path,
        {"timestamp": 0, "input_length": 1000, "output_length": 500, "hash_ids": [1, 2]},
        {"timestamp": 3000, "input_length": 700, "output_length": 4, "hash_ids": [1, 3]},
        {"timestamp": 4000, "hash_ids": []},
        {"timestamp": 5000, "input_length": 90000, "hash_ids": list(range(10, 60))},
    )
    shape = shape_of("trace", num_prompts=9, input_tokens=128, trace=choice)
    first, second = (session.turns[0] for session in make_sessions(shape, 0))
    assert len(first.tokens) == 125
    assert len(second.tokens) == 64 + 24
    assert first.tokens[:64] == second.tokens[:64]
    assert first.tokens[64:] != second.tokens[64:125]
    assert (first.num_output_tokens, second.num_output_tokens) == (8, 4)
    assert (first.arrival_s, second.arrival_s) == (0.0, 1.5)
    assert (first.is_revisit, second.is_revisit) == (False, True)


def test_a_trace_of_which_nothing_fits_is_refused(tmp_path: Path) -> None:
    choice = write_trace(tmp_path, {"hash_ids": [1, 2, 3]})
    with pytest.raises(ConfigError, match="no request of the trace fits into 100 input tokens"):
        make_sessions(shape_of("trace", input_tokens=100, trace=choice), 0)


@pytest.mark.parametrize("name", ["timestamp", "input_length", "output_length"])
@pytest.mark.parametrize("value", [-1, "1", True, 10**400])
def test_a_trace_with_a_number_that_is_none_is_refused(
    tmp_path: Path, name: str, value: object
) -> None:
    choice = write_trace(tmp_path, {"hash_ids": [1], name: value})
    with pytest.raises(TraceError, match=f"trace.jsonl:1: '{name}' must be a number"):
        make_sessions(shape_of("trace", trace=choice), 0)


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("random", {"vocabulary_tokens": 100}, "vocabulary-tokens: 100"),
        ("documents", {"input_tokens": 64}, "input-tokens: 64 is no long document"),
        ("trace", {}, "trace needs a file"),
    ],
)
def test_shapes_that_make_no_workload_are_refused(
    kind: str, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_sessions(shape_of(kind, **changes), 0)
