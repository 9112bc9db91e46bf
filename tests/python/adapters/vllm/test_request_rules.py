"""What one request may opt out of."""

import logging

import pytest

from kvtier import core_log
from kvtier.adapters.vllm.request_chain import RequestRules
from kvtier.adapters.vllm.request_rules import parse_request_rules

ALL = RequestRules()


@pytest.mark.parametrize("parameters", [None, {}, {"other": 1}, {"kvtier": {}}])
def test_a_request_that_says_nothing_gets_what_the_engine_does(parameters: object) -> None:
    assert parse_request_rules(parameters, ALL) == ALL


def test_a_request_opts_out_by_name() -> None:
    rules = parse_request_rules({"kvtier": {"save": False, "save_decode": "off"}}, ALL)
    assert rules == RequestRules(is_loading=True, is_saving=False, saves_decode=False)


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
    assert "load, save, save_decode" in caplog.text
