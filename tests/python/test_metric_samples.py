"""How stats() becomes samples: exact numbers, cumulative buckets, nothing of absent tiers."""

import math

from kvtier.metrics.sample import Reading, Sample, make_samples
from kvtier.statistics import NUM_LATENCY_BUCKETS, nest_statistics


def make_statistics(**changes: object) -> dict[str, object]:
    flat: dict[str, object] = {
        "get_blocks": 8,
        "host": {"hits": 3, "mode_io": "memory", "health": "ok"},
        "disk": None,
        "jobs": {"puts": 4, "ended": 2},
        "latency": {},
    }
    return nest_statistics({**flat, **changes})


def find(samples: list[Sample], name: str, **labels: str) -> list[float]:
    return [it.value for it in samples if it.name == name and it.labels.items() >= labels.items()]


def test_a_store_that_cannot_be_read_is_down_and_tells_nothing_else() -> None:
    assert [(it.name, it.value) for it in make_samples(None)] == [("kvtier_up", 0)]


def test_fields_become_samples_with_their_labels() -> None:
    samples = make_samples(Reading(statistics=make_statistics()))
    assert find(samples, "kvtier_up") == [1]
    assert find(samples, "kvtier_get_blocks_total") == [8]
    assert find(samples, "kvtier_hits_total", tier="host") == [3]
    assert find(samples, "kvtier_jobs_total", kind="put") == [4]
    assert find(samples, "kvtier_jobs_ended_total") == [2]
    # What this version of the store does not tell is not zero.
    assert find(samples, "kvtier_lookups_total") == []
    assert find(samples, "kvtier_live_age_seconds") == []


def test_a_tier_that_is_not_there_is_not_one_that_is_off() -> None:
    samples = make_samples(Reading(statistics=make_statistics()))
    assert find(samples, "kvtier_health", tier="disk") == []
    assert find(samples, "kvtier_hits_total", tier="disk") == []
    gone = {"mode_io": "uring", "mode_direct": "direct", "health": "off"}
    samples = make_samples(Reading(statistics=make_statistics(disk=gone)))
    assert find(samples, "kvtier_health", tier="disk", state="off") == [1]
    assert find(samples, "kvtier_health", tier="disk", state="ok") == [0]
    assert find(samples, "kvtier_is_healthy", tier="disk") == [0]
    assert find(samples, "kvtier_mode_info", tier="disk", io="uring", direct="direct") == [1]


def test_the_age_is_told_of_another_process_only() -> None:
    samples = make_samples(Reading(statistics=make_statistics(), age_s=2.5))
    assert find(samples, "kvtier_live_age_seconds") == [2.5]


def test_buckets_hold_what_the_ones_before_hold() -> None:
    counts = [0] * NUM_LATENCY_BUCKETS
    counts[0], counts[5], counts[-1] = 1, 10, 2
    latency = {"get": {"calls": 13, "total_ns": 5_000_000_000, "buckets": counts}}
    samples = make_samples(Reading(statistics=make_statistics(latency=latency)))
    name = "kvtier_latency_seconds"
    buckets = [it for it in samples if it.name == f"{name}_bucket" and it.labels["kind"] == "get"]
    assert [float(it.labels["le"]) for it in buckets][-1] == math.inf
    values = [it.value for it in buckets]
    assert values == [1] * 5 + [11] * (NUM_LATENCY_BUCKETS - 6) + [13]
    assert find(samples, f"{name}_count", kind="get") == [13]
    assert find(samples, f"{name}_sum", kind="get") == [5.0]
    assert find(samples, f"{name}_count", kind="put") == [0]
