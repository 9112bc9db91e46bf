"""What one request may opt out of."""

import logging
from types import SimpleNamespace

import pytest

from kvtier import core_log
from kvtier.adapters.vllm.request_chain import RequestRules
from kvtier.adapters.vllm.request_rules import num_committed_tokens, parse_request_rules

ALL = RequestRules()


@pytest.mark.parametrize("parameters", [None, {}, {"other": 1}, {"kvtier": {}}])
def test_a_request_that_says_nothing_gets_what_the_engine_does(parameters: object) -> None:
    assert parse_request_rules(parameters, ALL) == ALL


def test_a_request_opts_out_by_name() -> None:
    rules = parse_request_rules({"kvtier": {"save": False, "save_decode": "off"}}, ALL)
    assert rules == RequestRules(is_loading=True, is_saving=False, saves_decode=False)


def test_a_request_may_pin_where_that_is_allowed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_log, "_said_once", set())
    engine = RequestRules(may_pin=True)
    for wish, pins in (({"pin": True}, True), ({"unpin": "yes"}, False), ({"pin": False}, None)):
        assert parse_request_rules({"kvtier": wish}, engine).pins is pins
    assert not caplog.records
    assert parse_request_rules({"kvtier": {"pin": True}}, ALL).pins is None
    assert "allow_pins" in caplog.text


def test_a_request_cannot_ask_for_what_the_engine_does_not_do() -> None:
    engine = RequestRules(is_loading=False)
    assert parse_request_rules({"kvtier": {"load": True}}, engine) == engine


@pytest.mark.parametrize("said", ["x", {"lod": False}, {"load": "maybe"}, 7])
def test_what_is_not_understood_is_ignored_and_said_once(
    said: object, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_log, "_said_once", set())
    with caplog.at_level(logging.WARNING, "kvtier"):
        for _ in range(2):
            assert parse_request_rules({"kvtier": said}, ALL) == ALL
    assert len(caplog.records) == 1
    assert "load, save, save_decode, pin, unpin" in caplog.text


@pytest.mark.parametrize(
    ("status", "num_tokens", "num_computed_tokens", "num_committed"),
    [
        # Four tokens were sampled; nothing was computed for the last one, whatever was counted.
        ("FINISHED_LENGTH_CAPPED", 104, 104, 103),
        ("FINISHED_STOPPED", 104, 103, 103),
        ("FINISHED_STOPPED", 100, 100, 100),
        ("FINISHED_ABORTED", 100, 48, 48),
        ("FINISHED_ABORTED", 104, 0, 0),  # Preempted before.
        ("FINISHED_ABORTED", 104, 104, 103),
    ],
)
def test_of_a_request_that_ended_only_what_was_computed_is_kept(
    status: str, num_tokens: int, num_computed_tokens: int, num_committed: int
) -> None:
    request = SimpleNamespace(
        status=SimpleNamespace(name=status),
        num_prompt_tokens=100,
        num_tokens=num_tokens,
        num_computed_tokens=num_computed_tokens,
    )
    assert num_committed_tokens(request) == num_committed
