"""Metrics of stores for Prometheus: a table of what there is, a collector, and an endpoint.

Importing it needs no other package; register() needs prometheus-client, the extra "metrics".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvtier.errors import UnsupportedError
from kvtier.metrics.metric import Metric, MetricType
from kvtier.metrics.metric_table import METRICS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from kvtier.block_store import BlockStore
    from kvtier.metrics.registration import Registration
    from kvtier.monitor import Monitor

__all__ = ["METRICS", "Metric", "MetricType", "register", "require_client"]


def register(
    store_or_monitor: BlockStore | Monitor,
    registry: CollectorRegistry | None = None,
    labels: Mapping[str, str] | None = None,
) -> Registration:
    """Shows a store's metrics in `registry`; they are read when it is scraped.

    registry: None: prometheus_client.REGISTRY, which an application's own endpoint shows.
    labels:   added to every sample. Each has `path`, the store's folder, unless you give another;
              stores without a folder need labels that tell them apart.
    Returns what has unregister(); closing a store does it too. A monitor's store may close, die and
    come again: kvtier_up says so. A scrape never fails because of a store.
    Raises UsageError (labels that do not do, or that another store here has), UnsupportedError
    (prometheus-client is not installed), ClosedError.
    """
    require_client()
    from kvtier.metrics.registration import register_source

    return register_source(store_or_monitor, registry, dict(labels or {}))


def require_client() -> None:
    """Raises UnsupportedError, with the remedy, where prometheus-client is not installed."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(
            "metrics need the package prometheus-client: pip install 'kvtier[metrics]'"
        ) from error
