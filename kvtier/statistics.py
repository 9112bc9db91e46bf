"""Turns the core's flat counters into the dictionary of stats(). Pure functions; thread-safe."""

import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

Leaf: TypeAlias = int | float | str
Statistics: TypeAlias = dict[str, object]

_TIER_NUMBERS: Final = (
    "hits",
    "misses",
    "load_failures",
    "corrupt",
    "torn",
    "inserted",
    "declined",
    "evicted",
    "bytes_read",
    "bytes_written",
    "bytes_used",
    "bytes_capacity",
    "blocks",
    "pinned_bytes",
    "leased_bytes",
    "page_locked_bytes",
    "backlog_bytes",
    "backlog_bytes_max",
    "read_bytes_per_s",
    "expected_read_bytes_per_s",
    "unserved_bytes",
)
_TIERS: Final = ("host", "disk")
LATENCY_KINDS: Final = ("get", "put", "load", "save")
NUM_LATENCY_BUCKETS: Final = 27
LATENCY_BOUNDS_S: Final = (*(2**i / 1e6 for i in range(NUM_LATENCY_BUCKETS - 1)), math.inf)
"""Of a bucket: the longest time in it."""


def nest_statistics(flat: Mapping[str, object]) -> Statistics:
    """Returns the counters of the store, under "jobs" and under "tiers" those of each tier."""
    numbers = {
        name: as_number(value)
        for name, value in flat.items()
        if name not in {*_TIERS, "jobs", "latency"}
    }
    tiers = {name: _nest_tier(flat.get(name)) for name in _TIERS}
    if flat.get("host") is None:
        # Without a host tier every block that is asked for misses there.
        tiers["host"]["misses"] = numbers["get_blocks"]
    jobs = flat.get("jobs")
    counts = (
        {name: as_number(value) for name, value in jobs.items()}
        if isinstance(jobs, Mapping)
        else {}
    )
    return {
        **numbers,
        "jobs": counts,
        "latency": _nest_latencies(flat.get("latency")),
        "tiers": tiers,
    }


def _nest_latencies(flat: object) -> dict[str, dict[str, object]]:
    """Of gets, puts, loads and saves: how many calls, their time together, and quantiles of it."""
    kinds = flat if isinstance(flat, Mapping) else {}
    return {kind: describe_latency(kinds.get(kind, {})) for kind in LATENCY_KINDS}


def describe_latency(fields: Mapping[str, object]) -> dict[str, object]:
    """Returns {"calls", "total_s", "p50_s", "p99_s", "buckets"}; quantiles are upper bounds.

    buckets: {upper bound in seconds as text: calls that are in no bucket before it}.
    """
    listed = fields.get("buckets", ())
    counts = [as_number(it) for it in listed] if isinstance(listed, Sequence) else []
    counts += [0] * (NUM_LATENCY_BUCKETS - len(counts))
    return {
        "calls": as_number(fields.get("calls", 0)),
        "total_s": as_number(fields.get("total_ns", 0)) / 1e9,
        "p50_s": find_quantile_s(counts, 0.5),
        "p99_s": find_quantile_s(counts, 0.99),
        "buckets": {
            _bucket_text(bound_s): count
            for bound_s, count in zip(LATENCY_BOUNDS_S, counts, strict=True)
        },
    }


def find_quantile_s(counts: Sequence[int | float], quantile: float) -> float:
    """Returns the upper bound of the bucket that holds the quantile; 0.0 without calls.

    counts: one a bucket of LATENCY_BOUNDS_S. Of the last bucket, which has none, its lower bound.
    """
    left: float = sum(counts) * quantile
    for bound_s, count in zip(LATENCY_BOUNDS_S, counts, strict=True):
        left -= count
        if count and left <= 0:
            return float(min(bound_s, LATENCY_BOUNDS_S[-2]))
    return 0.0


def _bucket_text(bound_s: float) -> str:
    return "inf" if bound_s == math.inf else f"{bound_s:.6f}"


def find_hit_rate(statistics: Mapping[str, object]) -> float:
    """Returns the share of blocks asked for that was delivered, 0.0 to 1.0; 0.0 when none was.

    Asked for by gets and loads, or by lookups where those asked for more: who looks first loads
    only what is there.
    """
    asked = max(as_number(statistics["get_blocks"]), as_number(statistics["lookup_blocks"]))
    return as_number(statistics["hit_blocks"]) / asked if asked else 0.0


def _nest_tier(flat: object) -> dict[str, object]:
    """A tier that is not configured has all zeros and is "off"."""
    fields = flat if isinstance(flat, Mapping) else {}
    modes = {
        name.removeprefix("mode_"): str(value)
        for name, value in fields.items()
        if name.startswith("mode_") and value
    }
    if fields.get("health_reason"):
        modes["health_reason"] = str(fields["health_reason"])
    return {
        **{name: as_number(fields.get(name, 0)) for name in _TIER_NUMBERS},
        "mode": modes,
        "health": str(fields.get("health", "off")),
    }


def as_mapping(value: object) -> Mapping[str, object]:
    """Returns a dictionary of statistics, or an empty one where there is none."""
    return value if isinstance(value, Mapping) else {}


def as_number(value: object) -> int | float:
    """Returns a leaf; 0 where it is none.

    Booleans become 0 and 1: an exporter takes every leaf as it is.
    """
    if isinstance(value, float):
        return value
    return int(value) if isinstance(value, int) else 0
