"""`kvtier top`: a running store in full screen, renewed once a second. Reads only."""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from kvtier.cli.live_report import (
    TIERS,
    demand_line,
    format_latency,
    format_span,
    headline,
    holder_line,
    number_of,
    tier_line,
)
from kvtier.cli.top_history import MINUTE_S, TopHistory
from kvtier.errors import ConfigError
from kvtier.live_state import LiveState, require_live_state
from kvtier.monitor import describe, tier_of
from kvtier.store_folder import choose_folder
from kvtier.units import format_bytes

INTERVAL_S_MIN: Final = 0.1
INTERVAL_S_MAX: Final = 3600.0
_EVENTS_MAX: Final = 5
_SPARKS: Final = "▁▂▃▄▅▆▇█"
_QUIT_KEYS: Final = "qQ\x03\x1b"


def run_top(path: str | None, *, interval_s: float, num_frames: int | None, is_json: bool) -> int:
    """Shows frames until the user ends it, or `num_frames`; returns 0.

    Without a terminal, or as JSON (an object a line), one frame unless more are asked for.
    """
    if not INTERVAL_S_MIN <= interval_s <= INTERVAL_S_MAX:
        raise ConfigError(
            f"--interval: {interval_s} is not within {INTERVAL_S_MIN:g} to {INTERVAL_S_MAX:g} s"
        )
    folder = choose_folder(path)
    history = TopHistory()
    # The first one has no rates: it is only shown where more follow.
    history.add(require_live_state(folder))
    is_screen = sys.stdout.isatty() and sys.stdin.isatty() and not is_json
    num_left = num_frames or (None if is_screen else 1)
    with _screen(is_screen) as show, _keys(is_screen) as wait_for_key:
        while num_left is None or num_left > 0:
            if wait_for_key(interval_s) in _QUIT_KEYS:
                break
            live = require_live_state(folder)
            history.add(live)
            show(json.dumps(_frame_fields(live, history, interval_s)) if is_json else
                 "\n".join(frame_lines(live, history, interval_s)))  # fmt: skip
            num_left = num_left - 1 if num_left is not None else None
    return 0


def frame_lines(live: LiveState, history: TopHistory, interval_s: float) -> list[str]:
    """Returns the lines of one frame."""
    statistics = live.statistics
    lately = _percent(history.hit_rate(interval_s))
    lines = [
        headline(live),
        f"  {demand_line(statistics)}; last {interval_s:g} s {lately}, "
        f"last minute {_percent(history.hit_rate(MINUTE_S))}",
        "",
    ]
    for tier in TIERS:
        lines.append(f"  {tier_line(statistics, tier)}")
        if number_of(tier_of(statistics, tier), "bytes_capacity"):
            reads = history.bytes_per_s(tier, "read", interval_s)
            writes = history.bytes_per_s(tier, "written", interval_s)
            lines.append(
                f"        reads {reads / 1e9:6.2f} GB/s, writes {writes / 1e9:6.2f} GB/s"
                + _reason(live, tier)
            )
    disk, jobs = tier_of(statistics, "disk"), statistics["jobs"]
    assert isinstance(jobs, dict)
    lines += [
        "",
        f"  p99 of gets and loads  {spark_line(history.latencies_p99_s())}",
        f"  waiting for disk {format_bytes(int(number_of(disk, 'backlog_bytes')))}, jobs "
        f"{number_of(jobs, 'unfinished'):,}, leases {number_of(statistics, 'live_leases'):,}",
    ]
    if live.holders:
        lines += ["", "  held"]
    lines += [f"    {holder_line(holder)}" for holder in live.holders]
    if live.events:
        lines += ["", "  log"]
    lines += [
        f"    {format_span(event.age_s)} ago, {event.level}: {event.text}"
        for event in live.events[:_EVENTS_MAX]
    ]
    return lines


def spark_line(values: Sequence[float | None]) -> str:
    """Returns the course of latencies on a scale of powers of two, with the largest as text."""
    known = [it for it in values if it is not None and it > 0]
    if not known:
        return "no calls yet"
    largest = max(known)
    marks = ""
    for value in values:
        if value is None or value <= 0:
            marks += " "
            continue
        steps_below = 0
        while value * 2**steps_below < largest and steps_below < len(_SPARKS) - 1:
            steps_below += 1
        marks += _SPARKS[-1 - steps_below]
    return f"{marks}  at most {format_latency(largest)}"


def _frame_fields(live: LiveState, history: TopHistory, interval_s: float) -> dict[str, object]:
    return {
        **describe(live),
        "hit_rate_lately": history.hit_rate(interval_s),
        "hit_rate_last_minute": history.hit_rate(MINUTE_S),
        "bytes_per_s": {
            tier: {
                direction: history.bytes_per_s(tier, direction, interval_s)
                for direction in ("read", "written")
            }
            for tier in TIERS
        },
    }


def _percent(share: float | None) -> str:
    return "nothing asked" if share is None else f"{share:.1%}"


def _reason(live: LiveState, tier: str) -> str:
    modes = tier_of(live.statistics, tier)["mode"]
    reason = modes.get("health_reason") if isinstance(modes, dict) else None
    return f"  ({reason})" if reason else ""


@contextmanager
def _screen(is_screen: bool) -> Iterator[Callable[[str], None]]:
    """Gives what shows a frame: in place of the one before, or below it."""
    if not is_screen:
        yield lambda text: print(text, flush=True)
        return
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as screen:
        yield lambda text: screen.update(
            Text(f"{text}\n\n  q ends", overflow="ellipsis", no_wrap=True), refresh=True
        )


@contextmanager
def _keys(is_terminal: bool) -> Iterator[Callable[[float], str]]:
    """Gives what waits for a key, or until the time is over: then a blank."""
    if not is_terminal:
        yield lambda timeout_s: _blank_after(timeout_s)
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _wait_for_key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _blank_after(timeout_s: float) -> str:
    select.select([], [], [], timeout_s)
    return " "


def _wait_for_key(timeout_s: float) -> str:
    readable, _, _ = select.select([sys.stdin], [], [], timeout_s)
    return sys.stdin.read(1) or "q" if readable else " "
