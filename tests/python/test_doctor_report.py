"""What is printed of findings: one line each, more of those that are not good."""

from __future__ import annotations

import io
import re
import sys

import pytest

from kvtier.cli.doctor.finding import Finding, Level
from kvtier.cli.doctor.report import make_lines, print_report

GOOD = Finding(name="raw rate", text="reads 2 GB/s", why="loads in 0.1 s")
NOTE = Finding(name="irqbalance", level=Level.NOTE, text="not seen", why="so", remedy="start it")
BAD = Finding(name="swap", level=Level.WARN, text="4 GiB", why="it is slow", remedy="less of it")
FATAL = Finding(name="path", level=Level.FAIL, text="no", why="no disk tier", remedy="another")


def texts(*findings: Finding, is_verbose: bool = False) -> list[str]:
    return [text for text, _ in make_lines(findings, 1.25, is_verbose=is_verbose)]


def test_only_what_is_not_good_has_a_second_line() -> None:
    assert texts(GOOD, NOTE, BAD) == [
        "ok   raw rate      reads 2 GB/s: loads in 0.1 s",
        "note irqbalance    not seen",
        "WARN swap          4 GiB: it is slow",
        "                   -> less of it",
        "degraded (swap: it is slow)  [1.2 s]",
    ]


def test_verbose_shows_reason_and_remedy_of_notes() -> None:
    assert texts(NOTE, is_verbose=True) == [
        "note irqbalance    not seen: so",
        "                   -> start it",
        "ok  [1.2 s]",
    ]


def test_the_last_line_is_the_verdict() -> None:
    assert texts(GOOD)[-1] == "ok  [1.2 s]"
    assert texts(BAD, FATAL)[-1] == "unusable (path: no disk tier)  [1.2 s]"


def test_a_name_that_moves_the_cursor_is_shown_as_text() -> None:
    evil = Finding(name="path", text="a\x1b[2J\nb")
    assert texts(evil)[0] == "ok   path          a\\x1b[2J\\nb"


def test_without_a_terminal_there_is_no_colour(capsys: pytest.CaptureFixture[str]) -> None:
    print_report([BAD], 1.0, is_verbose=False)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.splitlines()[0] == "WARN swap          4 GiB: it is slow"


def test_on_a_terminal_lines_fit_and_marks_have_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    long = Finding(name="swap", level=Level.WARN, text="word " * 40, remedy="[b]less[/b] of it")
    print_report([long], 1.0, is_verbose=False)
    out = terminal.getvalue()
    assert "\x1b[33m" in out
    assert "[b]less[/b]" in out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert max(map(len, plain.splitlines())) < 80
