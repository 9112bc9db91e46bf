"""Sample: one number of a metric with its labels, made from stats(). Pure functions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kvtier import __version__
from kvtier.metrics.metric import Metric, Scope
from kvtier.metrics.metric_table import METRICS
from kvtier.metrics.store_metrics import (
    BUILD,
    HEALTH,
    IS_HEALTHY,
    JOBS_STARTED,
    LATENCY,
    LIVE_AGE,
    MODE,
    UP,
)
from kvtier.statistics import LATENCY_KINDS, Statistics, as_mapping, as_number

HEALTH_STATES: Final = ("ok", "degraded", "stalled", "off")
_MODE_NAMES: Final = ("io", "direct")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a store told at one instant."""

    statistics: Statistics
    """As stats() gives it."""
    age_s: float | None = None
    """How old that is; None: the store is in this process, and told it just now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One series at one instant."""

    metric: Metric
    name: str
    """The metric's, of a histogram with _bucket, _sum or _count."""
    labels: Mapping[str, str]
    value: float


def make_samples(reading: Reading | None) -> list[Sample]:
    """Returns every sample of a store; None: it is closed, or cannot be read.

    A tier that the store does not have has none: an absent disk is not one that is off.
    """
    if reading is None:
        return [_sample(UP, 0)]
    statistics = reading.statistics
    samples = [_sample(UP, 1), _sample(BUILD, 1, version=__version__)]
    if reading.age_s is not None:
        samples.append(_sample(LIVE_AGE, reading.age_s))
    samples += _plain_samples(Scope.STORE, statistics, {})
    jobs = as_mapping(statistics.get("jobs"))
    samples += _plain_samples(Scope.JOBS, jobs, {})
    samples += [
        _sample(JOBS_STARTED, jobs[f"{kind}s"], kind=kind)
        for kind in LATENCY_KINDS
        if f"{kind}s" in jobs
    ]
    for kind, latency in as_mapping(statistics.get("latency")).items():
        samples += _histogram_samples(kind, as_mapping(latency))
    for name, tier in as_mapping(statistics.get("tiers")).items():
        samples += _tier_samples(name, as_mapping(tier))
    return samples


def _tier_samples(name: str, tier: Mapping[str, object]) -> Iterator[Sample]:
    modes = as_mapping(tier.get("mode"))
    if not modes:
        return
    yield from _plain_samples(Scope.TIER, tier, {"tier": name})
    health = tier.get("health")
    for state in HEALTH_STATES:
        yield _sample(HEALTH, int(health == state), tier=name, state=state)
    yield _sample(IS_HEALTHY, int(health == HEALTH_STATES[0]), tier=name)
    words = {it: str(modes.get(it, "")) for it in _MODE_NAMES}
    yield _sample(MODE, 1, tier=name, **words)


def _plain_samples(
    scope: Scope, fields: Mapping[str, object], labels: Mapping[str, str]
) -> list[Sample]:
    return [
        _sample(metric, fields[metric.field], **labels)
        for metric in METRICS
        if metric.scope is scope and metric.field in fields
    ]


def _histogram_samples(kind: str, latency: Mapping[str, object]) -> Iterator[Sample]:
    """Buckets of stats() hold what is in no bucket before; those of Prometheus hold that too."""
    name, num_calls = LATENCY.name, 0.0
    for bound, count in as_mapping(latency.get("buckets")).items():
        num_calls += float(as_number(count))
        labels = {"kind": kind, "le": "+Inf" if bound == "inf" else bound}
        yield Sample(metric=LATENCY, name=f"{name}_bucket", labels=labels, value=num_calls)
    # Counted from the buckets, not taken from "calls": the two are not read at one instant.
    for suffix, value in (("sum", float(as_number(latency.get("total_s")))), ("count", num_calls)):
        yield Sample(metric=LATENCY, name=f"{name}_{suffix}", labels={"kind": kind}, value=value)


def _sample(metric: Metric, value: object, **labels: str) -> Sample:
    return Sample(metric=metric, name=metric.name, labels=labels, value=float(as_number(value)))
