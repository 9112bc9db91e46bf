"""Turns the core's flat counters into the dictionary of stats(). Pure functions; thread-safe."""

from collections.abc import Mapping
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
    "read_bytes_per_s",
    "expected_read_bytes_per_s",
    "unserved_bytes",
)
_TIERS: Final = ("host", "disk")


def nest_statistics(flat: Mapping[str, object]) -> Statistics:
    """Returns the counters of the store, under "jobs" and under "tiers" those of each tier."""
    numbers = {
        name: _number(value) for name, value in flat.items() if name not in {*_TIERS, "jobs"}
    }
    tiers = {name: _nest_tier(flat.get(name)) for name in _TIERS}
    if flat.get("host") is None:
        # Without a host tier every block that is asked for misses there.
        tiers["host"]["misses"] = numbers["get_blocks"]
    jobs = flat.get("jobs")
    counts = (
        {name: _number(value) for name, value in jobs.items()} if isinstance(jobs, Mapping) else {}
    )
    return {**numbers, "jobs": counts, "tiers": tiers}


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
        **{name: _number(fields.get(name, 0)) for name in _TIER_NUMBERS},
        "mode": modes,
        "health": str(fields.get("health", "off")),
    }


def _number(value: object) -> int | float:
    """Booleans become 0 and 1: an exporter takes every leaf as it is."""
    if isinstance(value, float):
        return value
    return int(value) if isinstance(value, int) else 0
