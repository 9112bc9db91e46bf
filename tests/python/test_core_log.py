"""Log lines of the core: repeated ones are held back, none is lost without a count."""

import logging

import pytest

from kvtier import core_log
from kvtier.core_log import INTERVAL_S, LINES_PER_INTERVAL_MAX, RepeatLimiter, log_core_line


class ManualClock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_thousand_lines_of_one_kind_become_a_few_k5() -> None:
    clock = ManualClock()
    limiter = RepeatLimiter(clock)
    lines = [limiter.admit(f"cannot write slot={i} key={i:032x}: errno=5") for i in range(1000)]
    said = [line for line in lines if line is not None]
    assert len(said) == LINES_PER_INTERVAL_MAX
    assert "left out" in said[-1]
    clock.now_s += INTERVAL_S
    line = limiter.admit(f"cannot write slot=7 key={7:032x}: errno=5")
    assert line is not None
    assert f"{1000 - LINES_PER_INTERVAL_MAX} more" in line


def test_lines_of_another_kind_still_pass() -> None:
    limiter = RepeatLimiter(ManualClock())
    for i in range(100):
        limiter.admit(f"cannot write slot={i}")
    assert limiter.admit("cannot read slot=1") == "cannot read slot=1"


def test_the_memory_of_lines_is_bounded() -> None:
    limiter = RepeatLimiter(ManualClock())
    for i in range(10_000):
        limiter.admit("cannot " + "".join(chr(ord("g") + int(digit)) for digit in str(i)))
    assert len(limiter._seen) <= 256


def test_levels_reach_the_standard_logger(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_log, "_limiter", RepeatLimiter(ManualClock()))
    with caplog.at_level(logging.INFO, logger="kvtier"):
        log_core_line("info", "opened 100 % %s")
        log_core_line("warning", "slow disk")
        log_core_line("unheard-of", "what")
    assert [(it.levelno, it.getMessage()) for it in caplog.records] == [
        (logging.INFO, "opened 100 % %s"),
        (logging.WARNING, "slow disk"),
        (logging.WARNING, "what"),
    ]
