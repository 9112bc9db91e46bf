"""StoreCollector: all stores of one registry, read when it is scraped. Thread-safe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from prometheus_client import Metric as Family
from prometheus_client.registry import Collector

from kvtier.core_log import warn_once
from kvtier.errors import ClosedError, UsageError
from kvtier.metrics.metric import Metric, MetricType
from kvtier.metrics.metric_table import METRICS
from kvtier.metrics.sample import Reading, make_samples
from kvtier.units import show

ReadStore: TypeAlias = Callable[[], Reading | None]
"""None: the store is closed. What it raises counts as that too."""
LabelSet: TypeAlias = frozenset[tuple[str, str]]


class StoreCollector(Collector):
    """One for each registry: a name may stand in an exposition only once, for all stores."""

    def __init__(self) -> None:
        # No lock, but single dictionary operations: the garbage collector may drop a store, and so
        # remove it here, within any of these methods, and a fork may come at any instant.
        self._sources: dict[LabelSet, ReadStore] = {}

    def add(self, labels: Mapping[str, str], read: ReadStore) -> None:
        """Raises UsageError when a store with these labels is there."""
        if self._sources.setdefault(frozenset(labels.items()), read) is not read:
            raise UsageError(
                f"labels: a store with {show(dict(labels))} is registered already; give "
                'labels that tell them apart, such as {"store": "2"}'
            )

    def remove(self, labels: Mapping[str, str]) -> None:
        """Forgets the store that was added with these labels: once, as another may take them."""
        self._sources.pop(frozenset(labels.items()), None)

    def describe(self) -> Iterator[Family]:
        """Yields every family without samples: the registry wants to know their names."""
        for metric in METRICS:
            yield _make_family(metric)

    def collect(self) -> Iterator[Family]:
        """Yields every family that has samples. Never raises."""
        # A list would make a tuple of each item, at which the garbage collector may run.
        sources = self._sources.copy()
        families: dict[Metric, Family] = {}
        for label_set, read in sources.items():
            labels = dict(label_set)
            for it in make_samples(_read_safely(read, labels)):
                if it.metric not in families:
                    families[it.metric] = _make_family(it.metric)
                families[it.metric].add_sample(it.name, {**labels, **it.labels}, it.value)
        yield from families.values()


def _read_safely(read: ReadStore, labels: Mapping[str, str]) -> Reading | None:
    try:
        return read()
    except ClosedError:
        return None
    except Exception as error:
        # One store's trouble must not hide the others.
        topic = ("metrics", str(sorted(labels.items())), type(error).__name__)
        warn_once(topic, f"no metrics of {show(dict(labels))}: {error}")
        return None


def _make_family(metric: Metric) -> Family:
    # The client appends _total to counters itself.
    is_counter = metric.type is MetricType.COUNTER
    name = metric.name.removesuffix("_total") if is_counter else metric.name
    return Family(name, metric.meaning, metric.type.value)
