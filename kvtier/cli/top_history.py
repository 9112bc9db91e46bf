"""TopHistory: what a store told in the last minute, for rates over any part of it.

Not thread-safe.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvtier.cli.live_report import TIERS, number_of
from kvtier.live_state import LiveState
from kvtier.monitor import tier_of
from kvtier.statistics import find_quantile_s

MINUTE_S: Final = 60.0
_DELIVERING_KINDS: Final = ("get", "load")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Counters at one time of the store's clock."""

    time_s: float
    asked: float
    looked_up: float
    delivered: float
    moved_bytes: Mapping[tuple[str, str], float]
    """By tier and direction ("read", "written")."""
    latency_counts: Sequence[float]
    """Calls that deliver blocks, one a bucket."""


class TopHistory:
    """Readings of one store; those of another, or of one opened anew, take their place."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque()
        self._identity: tuple[int, float] | None = None

    def add(self, live: LiveState) -> None:
        """Takes what was told in; what is older than a minute goes."""
        if self._identity != (live.pid, live.opened_s):
            self._identity = (live.pid, live.opened_s)
            self._readings.clear()
        reading = make_reading(live)
        self._readings.append(reading)
        while len(self._readings) > 2 and self._readings[1].time_s < reading.time_s - MINUTE_S:
            self._readings.popleft()

    def hit_rate(self, window_s: float) -> float | None:
        """Returns the share of blocks asked for in the last `window_s` that was delivered.

        None: no block was asked for.
        """
        first, last = self._window(window_s)
        asked = max(last.asked - first.asked, last.looked_up - first.looked_up)
        return min(1.0, (last.delivered - first.delivered) / asked) if asked > 0 else None

    def bytes_per_s(self, tier: str, direction: str, window_s: float) -> float:
        """Returns what a tier moved lately, "read" or "written"; 0.0 before the second reading."""
        first, last = self._window(window_s)
        elapsed_s = last.time_s - first.time_s
        moved = last.moved_bytes[tier, direction] - first.moved_bytes[tier, direction]
        return moved / elapsed_s if elapsed_s > 0 else 0.0

    def latencies_p99_s(self) -> list[float | None]:
        """Returns the 99th percentile between each two readings; None where no call ended."""
        readings = list(self._readings)
        return [_p99_between(before, after) for before, after in itertools.pairwise(readings)]

    def _window(self, window_s: float) -> tuple[Reading, Reading]:
        """The last reading, and the last of those before it that lies `window_s` back."""
        last = self._readings[-1]
        first = self._readings[0]
        for reading in self._readings:
            if reading is not last and reading.time_s <= last.time_s - window_s:
                first = reading
        if first is self._readings[0] and len(self._readings) > 1:
            # Readings come a little early: rather a longer window than one of twice the length.
            close = [it for it in self._readings if last.time_s - it.time_s <= 1.5 * window_s]
            first = close[0] if len(close) > 1 else self._readings[-2]
        return first, last


def make_reading(live: LiveState) -> Reading:
    """Returns the counters that rates are made of, as of now: what is not told has not changed."""
    statistics = live.statistics
    latencies = statistics["latency"]
    assert isinstance(latencies, Mapping)
    columns = [list(latencies[kind]["buckets"].values()) for kind in _DELIVERING_KINDS]
    return Reading(
        time_s=live.now_s + live.age_s,
        asked=number_of(statistics, "get_blocks"),
        looked_up=number_of(statistics, "lookup_blocks"),
        delivered=number_of(statistics, "hit_blocks"),
        moved_bytes={
            (tier, direction): number_of(tier_of(statistics, tier), f"bytes_{direction}")
            for tier in TIERS
            for direction in ("read", "written")
        },
        latency_counts=[sum(counts) for counts in zip(*columns, strict=True)],
    )


def _p99_between(before: Reading, after: Reading) -> float | None:
    counts = [
        last - first
        for first, last in zip(before.latency_counts, after.latency_counts, strict=True)
    ]
    return find_quantile_s(counts, 0.99) if sum(counts) > 0 else None
