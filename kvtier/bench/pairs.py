"""Two things timed in turns within one run, so that drift hits both alike. Stateless."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NUM_PAIRS = 7


@dataclass(frozen=True, kw_only=True)
class PairedTimes:
    """Seconds of both, pair by pair."""

    ours_s: Sequence[float]
    reference_s: Sequence[float]

    @property
    def rate_ratios(self) -> list[float]:
        """How fast ours is, as a share of the reference."""
        return [by / ours for ours, by in zip(self.ours_s, self.reference_s, strict=True)]

    @property
    def rate_ratio(self) -> float:
        return statistics.median(self.rate_ratios)

    def note(self, num_bytes: int) -> str:
        ours = num_bytes / statistics.median(self.ours_s) / 1e9
        reference = num_bytes / statistics.median(self.reference_s) / 1e9
        return f"{ours:.2f} of {reference:.2f} GB/s; {spread(self.rate_ratios)}"


def time_pairs(
    ours: Callable[[], object],
    reference: Callable[[], object],
    *,
    before: Callable[[], object] | None = None,
    num_pairs: int = NUM_PAIRS,
) -> PairedTimes:
    """Times both in turns, changing who goes first; `before` runs before `ours`, not timed.

    A pair before the first one warms up.
    """
    ours_s: list[float] = []
    reference_s: list[float] = []
    for pair_index in range(-1, num_pairs):
        steps = [(ours, ours_s, before), (reference, reference_s, None)]
        for call, times_s, prepare in steps if pair_index % 2 else reversed(steps):
            if prepare is not None:
                prepare()
            started_s = time.perf_counter()
            call()
            seconds = time.perf_counter() - started_s
            if pair_index >= 0:
                times_s.append(seconds)
    return PairedTimes(ours_s=ours_s, reference_s=reference_s)


def median_s(call: Callable[[], object], num_runs: int) -> float:
    """The median time of single calls, the first not counted."""
    call()
    times_s = []
    for _ in range(num_runs):
        started_s = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - started_s)
    return statistics.median(times_s)


def spread(values: Sequence[float]) -> str:
    return f"{len(values)} pairs, {min(values):.2f} to {max(values):.2f}"
