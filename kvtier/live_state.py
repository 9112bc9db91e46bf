"""LiveState: what a running store tells other processes through a file in its folder.

Reading takes no lock and disturbs nobody; thread-safe.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvtier import _core
from kvtier.errors import ConfigError, TierIOError
from kvtier.holder import Holder, make_holder
from kvtier.statistics import NUM_LATENCY_BUCKETS, Statistics, as_mapping, nest_statistics
from kvtier.store_folder import find_holder, require_folder
from kvtier.units import show

LIVE_FILE_NAME: Final = "kvtier.live"
RUNNING: Final = "running"
CLOSED: Final = "closed"
DIED: Final = "died"
SILENT: Final = "silent"
HEARTBEAT_S: Final = 30.0
"""A running store writes the file at least this often."""
_HEARTBEATS_MISSED_MAX: Final = 3
_ESCAPE: Final = re.compile(r"\\x([0-9a-f]{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveEvent:
    """A warning or error of the store's log."""

    level: str
    text: str
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """The last that a store told of itself. `statistics` is what its stats() gave."""

    path: str
    pid: int
    state: str
    """running; closed; died: not closed, and nobody holds the folder; silent: somebody holds it and
    has told nothing for long: the store has failed, or its disk hangs."""
    now_s: float
    """When it was told, on the monotonic clock: for rates between two states."""
    opened_s: float
    age_s: float
    """Since it was told. An idle store tells nothing new for half a minute."""
    statistics: Statistics
    holders: tuple[Holder, ...]
    events: tuple[LiveEvent, ...]
    """The newest first."""

    @property
    def uptime_s(self) -> float:
        """Returns seconds from open to the last that was told."""
        return max(0.0, self.now_s - self.opened_s)


def read_live_state(path: str | os.PathLike[str]) -> LiveState | None:
    """Returns what the store in folder `path` last told; None when none has told anything there.

    Raises ConfigError (no such folder), UnsupportedError (of another version of kvtier),
    TierIOError (the file cannot be read, or is damaged).
    """
    folder = require_folder(os.fspath(path))
    text = _core.read_live_file(folder)
    if text is None:
        return None
    fields = parse_live_text(text)
    # The clock of the writer is this machine's, unless the folder is another machine's.
    try:
        written_s = os.stat(os.path.join(folder, LIVE_FILE_NAME)).st_mtime
    except FileNotFoundError:
        return None  # Removed since it was read: a new store begins there.
    age_s = max(0.0, time.time() - written_s)
    now_s = _seconds(fields.get("now_ns"))
    statistics = nest_statistics(_unpack_latencies(as_mapping(fields.get("stats"))))
    return LiveState(
        path=folder,
        pid=_whole(fields.get("pid")),
        state=_find_state(folder, fields, age_s),
        now_s=now_s,
        opened_s=_seconds(fields.get("opened_ns")),
        age_s=age_s,
        statistics=statistics,
        holders=tuple(_holder_of(it, now_s + age_s) for it in _listed(fields.get("holders"))),
        events=tuple(
            LiveEvent(
                level=str(it.get("level", "")),
                text=str(it.get("text", "")),
                age_s=max(0.0, now_s + age_s - _seconds(it.get("time_ns"))),
            )
            for it in _listed(fields.get("events"))
        ),
    )


def require_live_state(path: str | os.PathLike[str]) -> LiveState:
    """Returns what the store in folder `path` last told. As read_live_state(), but never None.

    Raises ConfigError when no store has told anything there.
    """
    found = read_live_state(path)
    if found is not None:
        return found
    folder = os.fspath(path)
    if os.path.exists(os.path.join(folder, "kvtier.superblock")):
        raise ConfigError(
            f"path: the store in {show(folder)} has told nothing of itself: no process has opened "
            "it since this version of kvtier is installed"
        )
    raise ConfigError(f"path: there is no store in {show(folder)}")


def parse_live_text(text: str) -> dict[str, object]:
    """Returns the values of lines "a.b=value" as nested dictionaries. Raises TierIOError."""
    fields: dict[str, object] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        *parents, last = name.split(".")
        inner = fields
        for parent in parents:
            deeper = inner.setdefault(parent, {})
            if not isinstance(deeper, dict):
                raise TierIOError(f"the live file is damaged: {show(line)}")
            inner = deeper
        if not equals:
            raise TierIOError(f"the live file is damaged: {show(line)}")
        inner[last] = _parse_value(value, line)
    return fields


def _parse_value(value: str, line: str) -> int | float | str:
    if len(value) >= 2 and value[0] == value[-1] == '"':
        raw = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), value[1:-1])
        return raw.encode("latin-1", "replace").decode("utf-8", "replace")
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        raise TierIOError(f"the live file is damaged: {show(line)}") from None


def _find_state(folder: str, fields: Mapping[str, object], age_s: float) -> str:
    is_silent = age_s > _HEARTBEATS_MISSED_MAX * HEARTBEAT_S
    if find_holder(folder) is not None:
        return SILENT if is_silent else RUNNING
    if fields.get("state") == "closing":
        return CLOSED
    # A kernel does not show the locks of other containers. There only silence tells.
    is_hidden = fields.get("pid_namespace") != _find_pid_namespace()
    return RUNNING if is_hidden and not is_silent else DIED


def _find_pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _unpack_latencies(stats: Mapping[str, object]) -> dict[str, object]:
    """Buckets are told by their numbers, and only those that are not empty."""
    kinds = {}
    for kind, fields in as_mapping(stats.get("latency")).items():
        told = as_mapping(as_mapping(fields).get("buckets"))
        buckets = [_whole(told.get(str(i), 0)) for i in range(NUM_LATENCY_BUCKETS)]
        kinds[kind] = {**as_mapping(fields), "buckets": buckets}
    return {**stats, "latency": kinds}


def _holder_of(fields: Mapping[str, object], now_s: float) -> Holder:
    return make_holder(
        kind=str(fields.get("kind", "")),
        owner=str(fields.get("owner", "")),
        holder_id=_whole(fields.get("id")),
        num_blocks=_whole(fields.get("num_blocks")),
        num_bytes=_whole(fields.get("num_bytes")),
        since_s=_seconds(fields.get("since_ns")),
        until_s=_seconds(fields.get("until_ns")),
        now_s=now_s,
    )


def _listed(value: object) -> list[Mapping[str, object]]:
    """What stands under "0", "1", … in that order."""
    return [
        as_mapping(it) for _, it in sorted(as_mapping(value).items(), key=lambda it: int(it[0]))
    ]


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _seconds(value: object) -> float:
    return _whole(value) / 1e9
