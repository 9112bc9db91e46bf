"""Findings, the guard around each check, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvtier.cli.doctor.finding import Finding, Level, Verdict, judge, run_check


def finding(level: Level, name: str = "swap") -> Finding:
    return Finding(name=name, level=level, text="what is", why="it costs", remedy="do this")


def test_a_check_that_raises_becomes_a_note_and_keeps_what_it_found() -> None:
    def check() -> Iterator[Finding]:
        yield finding(Level.OK)
        raise RuntimeError("no such luck")

    first, second = run_check("swap", check)
    assert first == finding(Level.OK)
    assert (second.name, second.level) == ("swap", Level.NOTE)
    assert "RuntimeError: no such luck" in second.text


def test_ctrl_c_in_a_check_is_not_a_finding() -> None:
    def check() -> Finding:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run_check("swap", check))


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [
        ([], Verdict.OK),
        ([Level.OK, Level.NOTE], Verdict.OK),
        ([Level.OK, Level.WARN, Level.NOTE], Verdict.DEGRADED),
        ([Level.WARN, Level.FAIL], Verdict.UNUSABLE),
    ],
)
def test_the_worst_finding_decides_and_gives_the_reason(
    levels: list[Level], verdict: Verdict
) -> None:
    found, reasons = judge([finding(level) for level in levels])
    assert found is verdict
    assert reasons == ("" if verdict is Verdict.OK else "swap: it costs")


def test_of_many_reasons_the_first_are_given() -> None:
    _, reasons = judge([finding(Level.WARN, f"n{number}") for number in range(5)])
    assert reasons == "n0: it costs; n1: it costs; n2: it costs; and 2 more"


def test_a_finding_survives_its_description() -> None:
    for level in Level:
        assert Finding.from_description(finding(level).describe()) == finding(level)
    assert finding(Level.WARN).describe()["is_good"] is False
    with pytest.raises(KeyError):
        Finding.from_description({"name": "swap"})
