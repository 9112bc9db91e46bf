"""Registration: a store's place in a registry. Thread-safe."""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Mapping
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry

from kvtier.block_store import BlockStore
from kvtier.errors import UsageError
from kvtier.live_state import RUNNING
from kvtier.metrics.metric_table import METRICS
from kvtier.metrics.sample import Reading
from kvtier.metrics.store_collector import ReadStore, StoreCollector
from kvtier.monitor import Monitor
from kvtier.units import show

PATH_LABEL: Final = "path"
_LABEL_NAME: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_OWN_LABELS: Final = frozenset({"le", *(label for it in METRICS for label in it.labels)})

# A registry has one collector for all stores, for good: to take it out again needs a lock of the
# registry, which may be held just when the garbage collector drops a store. Not a setting: what is
# registered where.
_collectors: Final[weakref.WeakKeyDictionary[CollectorRegistry, StoreCollector]] = (
    weakref.WeakKeyDictionary()
)
# Held while a collector is made, and by nothing that a dropped store does.
_mutex = threading.RLock()


class Registration:
    """A store that a registry shows."""

    def __init__(self, collector: StoreCollector, labels: Mapping[str, str]) -> None:
        self._labels = dict(labels)
        # Taken out by the first call only: another store may have the labels afterwards.
        self._collectors = [collector]

    @property
    def labels(self) -> dict[str, str]:
        """Returns what every sample of the store has."""
        return dict(self._labels)

    def unregister(self) -> None:
        """Takes the store out of the registry. May be called again."""
        try:
            collector = self._collectors.pop()
        except IndexError:
            return
        collector.remove(self._labels)


def register_source(
    source: BlockStore | Monitor, registry: CollectorRegistry | None, labels: dict[str, str]
) -> Registration:
    """As kvtier.metrics.register()."""
    _check_labels(labels)
    if isinstance(source, BlockStore):
        read, folder = _reader_of_store(source), _folder_of(source)
    elif isinstance(source, Monitor):
        read, folder = _reader_of_monitor(source), source.path
    else:
        raise UsageError(f"store_or_monitor: expected a BlockStore or Monitor, got {show(source)}")
    # An empty label is to Prometheus as none.
    named = {PATH_LABEL: os.path.abspath(folder)} if folder else {}
    chosen = {**named, **labels}
    collector = _collector_of(REGISTRY if registry is None else registry)
    collector.add(chosen, read)
    registration = Registration(collector, chosen)
    if isinstance(source, BlockStore):
        source._call_at_close(registration.unregister)
    return registration


def _collector_of(registry: CollectorRegistry) -> StoreCollector:
    with _mutex:
        collector = _collectors.get(registry)
        if collector is None:
            collector = StoreCollector()
            registry.register(collector)
            _collectors[registry] = collector
        return collector


def _renew_after_fork() -> None:
    """The thread that held the lock may not be in the child."""
    global _mutex
    _mutex = threading.RLock()


os.register_at_fork(after_in_child=_renew_after_fork)


def _reader_of_store(store: BlockStore) -> ReadStore:
    # A store that nobody else keeps shall close, registered or not.
    reference = weakref.ref(store)

    def read() -> Reading | None:
        kept = reference()
        return None if kept is None else Reading(statistics=kept.stats())

    return read


def _reader_of_monitor(monitor: Monitor) -> ReadStore:
    def read() -> Reading | None:
        live = monitor.state()
        if live.state != RUNNING:
            return None
        return Reading(statistics=live.statistics, age_s=live.age_s)

    return read


def _folder_of(store: BlockStore) -> str:
    path = store.config()["path"]["value"]
    return os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""


def _check_labels(labels: Mapping[str, object]) -> None:
    for name, value in labels.items():
        if not isinstance(name, str) or not _LABEL_NAME.fullmatch(name) or name in _OWN_LABELS:
            own = ", ".join(sorted(_OWN_LABELS))
            raise UsageError(
                f"labels: {show(name)} is no name for a label; letters, digits and underscores, "
                f"and none of {own}"
            )
        if not isinstance(value, str):
            raise UsageError(f"labels: {name} must be text, got {show(value)}")
