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

# A registry has one collector for all stores. Not a setting: what is registered where.
_mutex: Final = threading.Lock()
_collectors: Final[weakref.WeakKeyDictionary[CollectorRegistry, StoreCollector]] = (
    weakref.WeakKeyDictionary()
)


class Registration:
    """A store that a registry shows."""

    def __init__(
        self, registry: CollectorRegistry, labels: Mapping[str, str], read: ReadStore
    ) -> None:
        self._registry = registry
        self._labels = dict(labels)
        self._read = read

    @property
    def labels(self) -> dict[str, str]:
        """Returns what every sample of the store has."""
        return dict(self._labels)

    def unregister(self) -> None:
        """Takes the store out of the registry. May be called again."""
        with _mutex:
            collector = _collectors.get(self._registry)
            if collector is not None and not collector.remove(self._labels, self._read):
                del _collectors[self._registry]
                self._registry.unregister(collector)


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
    chosen_registry = REGISTRY if registry is None else registry
    registration = Registration(chosen_registry, {**named, **labels}, read)
    _add(chosen_registry, registration.labels, read)
    if isinstance(source, BlockStore):
        source._call_at_close(registration.unregister)
    return registration


def _add(registry: CollectorRegistry, labels: Mapping[str, str], read: ReadStore) -> None:
    with _mutex:
        collector = _collectors.get(registry)
        if collector is None:
            collector = StoreCollector()
            collector.add(labels, read)
            registry.register(collector)
            _collectors[registry] = collector
        else:
            collector.add(labels, read)


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
