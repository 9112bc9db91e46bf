"""kvtier: the embedded tiered store for the KV cache of language models.

What SQLite is to data, kvtier is to KV blocks: open a directory, put and get blocks, close.
Importing it loads neither numpy nor the extension; both come with the first open().
"""

import enum
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kvtier.errors import (
    ClosedError,
    ConfigError,
    InternalError,
    KvtierError,
    StoreBusyError,
    TierIOError,
    TimeoutError,
    UnsupportedError,
    UsageError,
)
from kvtier.outcome import Outcome, Tier

if TYPE_CHECKING:
    from kvtier.arena_view import ArenaHandle, ArenaView
    from kvtier.block_plan import BlockPlan, PlanResult
    from kvtier.block_store import BlockStore
    from kvtier.config import Config
    from kvtier.holder import Holder
    from kvtier.job import Job
    from kvtier.lease import Lease
    from kvtier.live_state import LiveState
    from kvtier.monitor import Monitor
    from kvtier.namespace import Namespace
    from kvtier.paged_blocks import PagedBlocks
    from kvtier.paged_geometry import PagedGeometry
    from kvtier.paged_worker import PagedWorker, WorkerJob
    from kvtier.planned_job import PlannedJob
    from kvtier.results import (
        FlushResult,
        GetResult,
        LoadResult,
        Lookup,
        PlannedLoadResult,
        PutResult,
    )

__version__: Final = "0.1.0"

__all__ = [
    "ArenaHandle",
    "ArenaView",
    "BlockPlan",
    "BlockStore",
    "ClosedError",
    "Config",
    "ConfigError",
    "FlushResult",
    "GetResult",
    "Holder",
    "InternalError",
    "Job",
    "KvtierError",
    "Lease",
    "LiveState",
    "LoadResult",
    "Lookup",
    "Monitor",
    "Namespace",
    "Outcome",
    "PagedBlocks",
    "PagedGeometry",
    "PagedWorker",
    "PlanResult",
    "PlannedJob",
    "PlannedLoadResult",
    "PutResult",
    "StoreBusyError",
    "Tier",
    "TierIOError",
    "TimeoutError",
    "UnsupportedError",
    "UsageError",
    "WorkerJob",
    "open",
]

# Loaded at first use: they need numpy or the extension, or are rarely wanted.
_LAZY_MODULES: Final = {
    "ArenaHandle": "kvtier.arena_view",
    "ArenaView": "kvtier.arena_view",
    "BlockPlan": "kvtier.block_plan",
    "BlockStore": "kvtier.block_store",
    "Config": "kvtier.config",
    "FlushResult": "kvtier.results",
    "GetResult": "kvtier.results",
    "Holder": "kvtier.holder",
    "Job": "kvtier.job",
    "Lease": "kvtier.lease",
    "LiveState": "kvtier.live_state",
    "LoadResult": "kvtier.results",
    "Lookup": "kvtier.results",
    "Monitor": "kvtier.monitor",
    "Namespace": "kvtier.namespace",
    "PagedBlocks": "kvtier.paged_blocks",
    "PagedGeometry": "kvtier.paged_geometry",
    "PagedWorker": "kvtier.paged_worker",
    "PlanResult": "kvtier.block_plan",
    "PlannedJob": "kvtier.planned_job",
    "PlannedLoadResult": "kvtier.results",
    "PutResult": "kvtier.results",
    "WorkerJob": "kvtier.paged_worker",
}


class _Unset(enum.Enum):
    """Stands for "not said": an explicit argument wins over a variable, a default does not."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "<unset>"


_UNSET: Final = _Unset.UNSET


def open(
    path: "str | os.PathLike[str] | _Unset | None" = _UNSET,
    *,
    host_bytes: int | str | _Unset = _UNSET,
    disk_bytes: int | str | _Unset = _UNSET,
    config: "str | os.PathLike[str] | Mapping[str, object] | Config | None" = None,
    io: str | _Unset = _UNSET,
    direct: str | _Unset = _UNSET,
    checksum: bool | _Unset = _UNSET,
    shared: bool | _Unset = _UNSET,
    default_timeout_s: float | _Unset = _UNSET,
    lock_wait_s: float | _Unset = _UNSET,
    **settings: object,
) -> "BlockStore":
    """Opens a store. All settings, their defaults and ranges: kvtier.Config.

    path:   folder of the disk tier, made when missing; None: no disk tier.
    config: path of a YAML file, a mapping or a Config, beneath arguments and KVTIER_* variables.
    Raises ConfigError (all problems at once), StoreBusyError (the folder is in use),
    UnsupportedError, TierIOError.
    """
    named: dict[str, object] = {
        "path": path,
        "host_bytes": host_bytes,
        "disk_bytes": disk_bytes,
        "io": io,
        "direct": direct,
        "checksum": checksum,
        "shared": shared,
        "default_timeout_s": default_timeout_s,
        "lock_wait_s": lock_wait_s,
    }
    said = {name: value for name, value in named.items() if value is not _UNSET}

    from kvtier.block_store import open_store

    return open_store({**said, **settings}, config)


def __getattr__(name: str) -> object:
    module_name = _LAZY_MODULES.get(name)
    if module_name is None:
        raise AttributeError(f"module 'kvtier' has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(module_name), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
