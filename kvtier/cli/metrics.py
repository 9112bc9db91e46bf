"""`kvtier metrics`: stores of other processes for Prometheus, over HTTP or once as text.

Reads only; holds no state.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kvtier.errors import ConfigError, KvtierError
from kvtier.metrics import require_client
from kvtier.metrics.store_metrics import UP
from kvtier.monitor import Monitor
from kvtier.store_folder import choose_folder

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_PORT_MAX: Final = 65_535


def run_metrics(
    paths: Sequence[str], *, host: str, port: int | None, is_once: bool, is_json: bool
) -> int:
    """Answers until it is interrupted, or prints once; returns 1 when then a store is not up."""
    require_client()
    if is_once and port is not None:
        raise ConfigError("--once opens no port: leave out --port, or --once")
    if not is_once and (port is None or not 0 <= port <= _PORT_MAX):
        raise ConfigError(
            f"--port: expected 0 to {_PORT_MAX}, got {port}; or give --once to print the metrics"
        )
    # Folders that are named may come later: an exporter starts before the engine does.
    named = [os.path.expanduser(path) for path in paths] or [choose_folder(None)]
    monitors = [Monitor(path) for path in dict.fromkeys(map(os.path.abspath, named))]
    if is_once:
        return _print_once(monitors, is_json=is_json)
    return _serve(monitors, host, port or 0, is_json=is_json)


def _serve(monitors: Sequence[Monitor], host: str, port: int, *, is_json: bool) -> int:
    from kvtier.metrics.endpoint import MetricsEndpoint

    endpoint = MetricsEndpoint(host, port, named="--port")
    for monitor in monitors:
        endpoint.show(monitor)
        _say_what_is_missing(monitor)
    if is_json:
        print(json.dumps({"url": endpoint.url, "paths": [it.path for it in monitors]}), flush=True)
    else:
        print(f"metrics of {len(monitors)} stores at {endpoint.url}", flush=True)
    try:
        endpoint.serve()
    finally:
        endpoint.close()
    return 0


def _say_what_is_missing(monitor: Monitor) -> None:
    try:
        monitor.state()
    except KvtierError as error:
        print(f"kvtier: {error}; {UP.name} is 0 until that changes", file=sys.stderr)


def _print_once(monitors: Sequence[Monitor], *, is_json: bool) -> int:
    from prometheus_client import CollectorRegistry, generate_latest

    from kvtier.metrics import register

    registry = CollectorRegistry()
    for monitor in monitors:
        register(monitor, registry)
        _say_what_is_missing(monitor)
    listed = _list_samples(registry)
    if is_json:
        print(json.dumps({"samples": listed}, indent=2))
    else:
        print(generate_latest(registry).decode(), end="")
    is_up = all(it["value"] == 1 for it in listed if it["name"] == UP.name)
    return 0 if is_up else 1


def _list_samples(registry: CollectorRegistry) -> list[dict[str, object]]:
    return [
        {"name": it.name, "labels": it.labels, "value": it.value}
        for family in registry.collect()
        for it in family.samples
    ]
