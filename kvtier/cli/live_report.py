"""What `kvtier stats` and `kvtier top` say alike of a running store. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvtier.holder import Holder
from kvtier.live_state import LiveState
from kvtier.monitor import tier_of
from kvtier.statistics import Statistics, find_hit_rate
from kvtier.units import format_bytes

TIERS: Final = ("host", "disk")
_BAR_CELLS: Final = 20


def headline(live: LiveState) -> str:
    """Returns one line: which store, whose, since when."""
    whose = f"pid {live.pid}"
    since = f"open for {format_span(live.uptime_s)}"
    if live.state == "running":
        return f"{live.path}: running, {whose}, {since}"
    if live.state == "silent":
        return (
            f"{live.path}: in use, {whose}, but nothing was told for {format_span(live.age_s)}: "
            "the store has failed, or its disk hangs"
        )
    ended = "closed" if live.state == "closed" else "died without closing"
    return f"{live.path}: {ended} {format_span(live.age_s)} ago, {whose}, was {since}"


def demand_line(statistics: Statistics) -> str:
    """Returns what was asked for and delivered since open."""
    asked = max(number_of(statistics, "get_blocks"), number_of(statistics, "lookup_blocks"))
    return (
        f"blocks asked for {asked:,}, delivered {number_of(statistics, 'hit_blocks'):,} "
        f"({find_hit_rate(statistics):.1%})"
    )


def tier_line(statistics: Statistics, name: str) -> str:
    """Returns one tier's fill and counters."""
    tier = tier_of(statistics, name)
    if number_of(tier, "bytes_capacity") == 0:
        return f"{name}  none"
    used, capacity = number_of(tier, "bytes_used"), number_of(tier, "bytes_capacity")
    return (
        f"{name}  {tier['health']!s:<8} {fill_bar(used / capacity)} {used / capacity:>4.0%} of "
        f"{format_bytes(int(capacity))}  {number_of(tier, 'blocks'):,} blocks, "
        f"{number_of(tier, 'hits'):,} hits, {number_of(tier, 'evicted'):,} evicted, "
        f"{number_of(tier, 'declined'):,} declined, {number_of(tier, 'corrupt'):,} corrupt"
    )


def latency_line(statistics: Statistics) -> str:
    """Returns the median and the 99th percentile of each kind of call that was made."""
    latencies = statistics["latency"]
    assert isinstance(latencies, Mapping)
    said = [
        f"{kind} {format_latency(it['p50_s'])} / {format_latency(it['p99_s'])}"
        for kind, it in latencies.items()
        if it["calls"]
    ]
    return "p50 / p99 up to: " + (", ".join(said) or "no calls yet")


def holder_line(holder: Holder) -> str:
    """Returns who keeps how much, and how long."""
    owner = f" of {holder.owner!r}" if holder.owner else ""
    ends = "" if holder.expires_in_s is None else f", expires in {holder.expires_in_s:.0f} s"
    return (
        f"{holder.kind}{owner}: {holder.num_blocks:,} blocks, {format_bytes(holder.num_bytes)}, "
        f"for {format_span(holder.age_s)}{ends}"
    )


def fill_bar(share: float) -> str:
    """Returns a bar of 20 cells."""
    num_full = round(min(1.0, max(0.0, share)) * _BAR_CELLS)
    return "█" * num_full + "░" * (_BAR_CELLS - num_full)


def format_span(seconds: float) -> str:
    """Returns a duration in its two largest units."""
    whole = int(seconds)
    for unit, unit_s, smaller, smaller_s in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= unit_s:
            return f"{whole // unit_s} {unit} {whole % unit_s // smaller_s} {smaller}"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60} s"
    return f"{seconds:.1f} s"


def format_latency(seconds: float) -> str:
    """Returns a short time in the unit that suits it."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def number_of(fields: Mapping[str, object], name: str) -> int | float:
    """Returns a counter or gauge; 0 where it is missing."""
    value = fields.get(name, 0)
    return value if isinstance(value, (int, float)) else 0
