"""Monitor: hit rate and use of a store that another process has open. Thread-safe."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict

from kvtier.config import Config
from kvtier.errors import ConfigError
from kvtier.live_state import LiveState, require_live_state
from kvtier.settings import resolve_settings
from kvtier.statistics import Statistics, find_hit_rate


class Monitor:
    """Watches the store in one folder. Needs no server, takes no lock and never disturbs it."""

    def __init__(self, path_or_config: object = None) -> None:
        """Takes a store's folder, or what kvtier.open() takes as `config` and names one.

        None: the folder that KVTIER_PATH names. Raises ConfigError (no folder is named).
        """
        self._path = find_path(path_or_config)

    @property
    def path(self) -> str:
        """Returns the folder that is watched."""
        return self._path

    def state(self) -> LiveState:
        """Returns the last that the store told; it may be closed or dead by now: see `.state`.

        Raises ConfigError (no store there), UnsupportedError (of another version), TierIOError.
        """
        return require_live_state(self._path)

    def get_stats(self) -> dict[str, object]:
        """Returns one flat view, with the whole of stats() under "stats".

        cache_hit_rate: 0.0 to 1.0, the share of the blocks asked for that was delivered.
        disk_usage, disk_capacity, memory_usage, memory_capacity: bytes.
        state: running, closed or died. age_s: since the store told this.
        holders, events: who keeps blocks from eviction; the newest warnings first.
        Raises as state().
        """
        return describe(self.state())


def describe(live: LiveState) -> dict[str, object]:
    """Returns the view that Monitor.get_stats() gives, of one state."""
    disk, host = tier_of(live.statistics, "disk"), tier_of(live.statistics, "host")
    return {
        "cache_hit_rate": find_hit_rate(live.statistics),
        "disk_usage": disk["bytes_used"],
        "disk_capacity": disk["bytes_capacity"],
        "memory_usage": host["bytes_used"],
        "memory_capacity": host["bytes_capacity"],
        "state": live.state,
        "pid": live.pid,
        "age_s": live.age_s,
        "uptime_s": live.uptime_s,
        "stats": live.statistics,
        "holders": [asdict(it) for it in live.holders],
        "events": [asdict(it) for it in live.events],
    }


def find_path(path_or_config: object) -> str:
    """Returns the folder that is meant. Raises ConfigError when none is named."""
    if isinstance(path_or_config, (str, os.PathLike)) and not os.path.isfile(path_or_config):
        return os.path.expanduser(os.fspath(path_or_config))
    if not isinstance(path_or_config, (str, os.PathLike, Mapping, Config, type(None))):
        raise ConfigError(
            f"path_or_config: expected a folder, a file, a mapping or a Config, got "
            f"{type(path_or_config).__name__}"
        )
    path = resolve_settings({}, path_or_config).config.path
    if path is None:
        raise ConfigError(
            "path: no folder is named, and a store without one tells nothing to other processes; "
            "give the folder of its disk tier, or set KVTIER_PATH"
        )
    return os.fspath(path)


def tier_of(statistics: Statistics, name: str) -> Mapping[str, object]:
    """Returns the part of stats() that is about one tier."""
    tiers = statistics["tiers"]
    assert isinstance(tiers, Mapping)
    tier = tiers[name]
    assert isinstance(tier, Mapping)
    return tier
