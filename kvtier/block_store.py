"""BlockStore: an open store, and how one is opened. Thread-safe."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final

from kvtier import _core, open_stores
from kvtier.arena_view import ArenaHandle
from kvtier.block_plan import PlanResult
from kvtier.call_arguments import check_count, check_seconds, check_timeout_s
from kvtier.capacity import Capacity, DiskSpace, find_free_bytes, resolve_capacity
from kvtier.config import SETTINGS, Config
from kvtier.core_log import log_core_line, logger, warn_once
from kvtier.errors import ClosedError, ConfigError, UnsupportedError, UsageError
from kvtier.holder import Holder, make_holder
from kvtier.job_table import AnyJob, JobTable
from kvtier.machine import memory_limit, unified_gpu
from kvtier.namespace import Namespace
from kvtier.namespace_identity import make_identity, parse_namespace_id
from kvtier.paged_worker import check_rank
from kvtier.results import FlushResult
from kvtier.setting_rules import places_text
from kvtier.settings import Settings, resolve_settings
from kvtier.statistics import Statistics, nest_statistics
from kvtier.store_warnings import list_warnings
from kvtier.transfer_settings import TransferSettings
from kvtier.units import show

if TYPE_CHECKING:
    from kvtier.metrics.endpoint import MetricsEndpoint

CLOSE_TIMEOUT_S: Final = 5.0
_TIERS: Final = ("host", "disk")
# Often enough for a view that is renewed once a second; each time costs some 50 us of a thread.
PUBLISH_INTERVAL_S: Final = 0.25


class BlockStore:
    """Blocks of KV bytes in a host tier and a disk tier. Made by kvtier.open().

    A context manager; closes itself at exit. In a forked child every call raises ClosedError.
    """

    def __init__(self, core_store: _core.Store, effective: dict[str, dict[str, object]]) -> None:
        self._core_store = core_store
        self._effective = effective
        default_timeout_s = effective["default_timeout_s"]["value"]
        assert isinstance(default_timeout_s, float)
        self._default_timeout_s = default_timeout_s
        self._transfer_settings = TransferSettings.of_store(effective)
        self._jobs = JobTable()
        # What shows this store elsewhere and has to end with it.
        self._close_calls: list[Callable[[], None]] = []
        self._endpoint: MetricsEndpoint | None = None
        open_stores.register(self)

    def namespace(
        self,
        *,
        model: str,
        block_bytes: int,
        block_tokens: int = 16,
        fingerprint: str | bytes | None = None,
        dtype: object = "bfloat16",
        layout: str = "opaque",
        group: int = 0,
        parts: Iterable[int] | None = None,
        tp_size: int = 1,
        rank: int = 0,
        replicated: bool = False,
        adapter: str | bytes | None = None,
        salt: str | bytes | None = None,
    ) -> Namespace:
        """Returns the namespace with exactly this identity; any difference keeps data apart.

        Raises ConfigError (a value that does not fit, a block too large for every tier).
        """
        identity = make_identity(
            model=model,
            block_bytes=block_bytes,
            block_tokens=block_tokens,
            fingerprint=fingerprint,
            dtype=dtype,
            layout=layout,
            group=group,
            parts=parts,
            tp_size=tp_size,
            rank=rank,
            replicated=replicated,
            adapter=adapter,
            salt=salt,
        )
        namespace_index = self._core_store.add_namespace(
            identity.id, identity.text, identity.block_bytes, list(identity.part_bytes)
        )
        if fingerprint is None:
            warn_once(
                ("fingerprint", model),
                f"model {show(model)} has no fingerprint: other weights under the same name would "
                "be served its blocks; pass fingerprint= (a digest or revision of the weights)",
            )
        return Namespace(
            store=self,
            core_store=self._core_store,
            identity=identity,
            namespace_index=namespace_index,
            default_timeout_s=self._default_timeout_s,
            transfer_settings=self._transfer_settings,
            jobs=self._jobs,
        )

    def poll(self) -> list[AnyJob]:
        """Returns jobs that ended since the last call, each once, in the order of their ends.

        Does not block. Of ended jobs that nobody keeps it lists the newest 4,096.
        """
        return [self._jobs.find_or_make(self, job) for job in self._core_store.poll_jobs()]

    @property
    def event_fd(self) -> int:
        """Returns a descriptor that is readable while poll() would list something.

        For select, epoll or asyncio's add_reader. The store's own: do not read, write or close it;
        it is valid as long as the store lives.
        """
        return self._core_store.job_event_fd()

    def arena_handle(self) -> ArenaHandle:
        """Returns what lets other processes map this store's host memory; see ArenaView.open().

        Raises ConfigError (the store was not opened with shared_arena=True, or has no host tier).
        """
        places = tuple(self._core_store.share_arenas())
        return ArenaHandle(places=places, generation=self._core_store.plan_generation())

    def finish_plan(self, result: PlanResult) -> bool:
        """Takes in what a rank made of a plan; see Namespace.plan_save(). Does not block.

        False, and nothing happens: the plan has ended, is of another store, or was answered by this
        rank before. Raises UsageError when the answer does not fit; the plan then waits on.
        """
        if not isinstance(result, PlanResult):
            raise UsageError(f"result: expected a PlanResult, got {show(result)}")
        fields = (
            result.plan_id,
            result.arena_id,
            result.rank,
            result.status,
            result.message,
            result.first_part,
            result.num_parts,
        )
        return self._core_store.finish_plan(fields, result.checksums, result.undefined_indices)

    def abandon_rank(self, rank: int) -> int:
        """Ends what the rank's process has not answered as failed; returns how many plans.

        Only when that process is known to have ended: slots that it works on are given away, as
        soon as the other ranks of the same plans have answered. Calls under way that count on the
        rank make no more plans; later calls count on it again: give the process that takes its
        place a new arena_handle().
        """
        return self._core_store.abandon_rank(check_rank(rank))

    def flush(self, timeout_s: float | None = None) -> FlushResult:
        """Makes every earlier put that disk kept survive kill -9 and power loss.

        Raises TimeoutError at the deadline, TierIOError when kept blocks cannot be made durable.
        """
        durable_blocks, not_kept_blocks = self._core_store.flush(
            check_timeout_s(timeout_s, self._default_timeout_s)
        )
        return FlushResult(durable_blocks=durable_blocks, not_kept_blocks=not_kept_blocks)

    def clear(self, tiers: Iterable[str] = _TIERS) -> dict[str, dict[str, int]]:
        """Empties tiers, durably; returns {tier: {"blocks", "bytes", "pending_blocks"}}."""
        asked = (tiers,) if isinstance(tiers, str) else tuple(tiers)
        unknown = [tier for tier in asked if tier not in _TIERS]
        if unknown:
            raise UsageError(f"tiers: expected some of {', '.join(_TIERS)}; got {show(unknown[0])}")
        cleared = self._core_store.clear("host" in asked, "disk" in asked)
        return {tier: cleared[tier] for tier in _TIERS if tier in asked}

    def wipe(self, namespace: Namespace | str) -> int:
        """Removes all blocks of a namespace, or of the id of one, durably; returns how many.

        Also of one that lies on disk and is not in use. Blocks that somebody leased stay, with
        their ancestors. Raises UsageError (no id), TimeoutError, TierIOError.
        """
        namespace_id = namespace.id if isinstance(namespace, Namespace) else namespace
        return self._core_store.erase_where(parse_namespace_id(namespace_id), [])

    def stats(self) -> Statistics:
        """Returns counters and gauges of the store and its tiers."""
        return nest_statistics(self._core_store.stats())

    def holders(self, num_max: int = 100) -> list[Holder]:
        """Returns who keeps blocks from eviction: leases and jobs, of each the oldest `num_max`."""
        rows = self._core_store.holders(check_count(num_max, "num_max"))
        now_s = time.monotonic()
        return [make_holder(*row, now_s=now_s) for row in rows]

    def config(self) -> dict[str, dict[str, object]]:
        """Returns every effective setting: {name: {"value", "origin"}}, sizes in bytes."""
        if self._core_store.is_closed():
            raise ClosedError("the store is closed, or was opened before a fork")
        return {name: dict(setting) for name, setting in self._effective.items()}

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Writes the backlog until the deadline, drops the rest. May be called again."""
        seconds = check_seconds(timeout_s, "timeout_s")
        open_stores.unregister(self)
        self._make_close_calls()
        if not self._core_store.is_closed():
            self._core_store.close(seconds)

    def __enter__(self) -> BlockStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A store that was dropped closes as at exit. Missing when the constructor failed.
        if hasattr(self, "_endpoint") and not self._core_store.is_closed():
            self._make_close_calls()
            self._core_store.close(open_stores.EXIT_CLOSE_S)

    def __repr__(self) -> str:
        path = self._effective["path"]["value"]
        return f"BlockStore(path={show(path)}, is_closed={self._core_store.is_closed()})"

    def _call_at_close(self, call: Callable[[], None]) -> None:
        """`call` must not raise, may not need the store, and may be made twice."""
        self._close_calls.append(call)

    def _make_close_calls(self) -> None:
        calls, self._close_calls = self._close_calls, []
        for call in calls:
            call()

    def _serve_metrics(self, endpoint: MetricsEndpoint) -> None:
        """Takes over an endpoint that is bound, and starts it."""
        self._endpoint = endpoint
        self._call_at_close(endpoint.close)
        endpoint.show(self)
        endpoint.start()

    def _abandon_after_fork(self) -> None:
        # Their locks may be held by threads that this process does not have.
        self._close_calls.clear()
        if self._endpoint is not None:
            self._endpoint.abandon_after_fork()
        self._core_store.abandon_after_fork()


def open_store(
    arguments: Mapping[str, object],
    source: object,
    *,
    simulated_disk: _core.SimulatedDisk | None = None,
) -> BlockStore:
    """Opens a store with explicit `arguments` over the environment, `source` and the defaults.

    simulated_disk: for benchmarks, makes the disk as slow as another one.
    """
    settings = resolve_settings(arguments, source)
    config = settings.config
    if config.shared:
        raise UnsupportedError("shared: several processes in one store are not supported yet")
    capacity = find_capacity(settings)
    effective = describe_effective(settings, capacity)
    _say_what_was_understood(settings, capacity)
    options = _core_options(config, capacity)
    if simulated_disk is not None:
        options["simulated_disk"] = simulated_disk
    with ExitStack() as undo:
        # Bound first: a port in use must not cost the work of opening.
        endpoint = _bind_metrics(config)
        if endpoint is not None:
            undo.callback(endpoint.close)
        core_store = _core.Store(options, partial(log_core_line, path=options.get("path")))
        undo.pop_all()
    logger.info("opened: %s", _effective_text(effective))
    store = BlockStore(core_store, effective)
    if endpoint is not None:
        store._serve_metrics(endpoint)
    return store


def find_capacity(settings: Settings) -> Capacity:
    """Returns the sizes that `settings` come to on this machine.

    Raises ConfigError (they do not fit) with the places where sizes were stated.
    """
    config = settings.config
    space = None
    if config.path is not None:
        path = os.fspath(config.path)
        own_files = _core.list_own_files(path) if os.path.isdir(path) else []
        space = DiskSpace(
            own_bytes=sum(allocated_bytes for _, allocated_bytes in own_files),
            free_bytes=find_free_bytes(path),
        )
    try:
        return resolve_capacity(config, memory_limit(), space, unified_gpu())
    except ConfigError as error:
        where = places_text(("host_bytes", "staging_bytes", "disk_bytes"), settings.places)
        raise ConfigError(f"{error}{where}") from error


def describe_effective(settings: Settings, capacity: Capacity) -> dict[str, dict[str, object]]:
    """Returns {name: {"value", "origin"}} with "auto" replaced and its reason as "note"."""
    resolved: dict[str, object] = {
        "num_io_threads": _find_num_io_threads(settings.config),
        "host_bytes": capacity.host_bytes,
        "staging_bytes": capacity.staging_bytes,
        "disk_bytes": capacity.disk_bytes,
    }
    effective: dict[str, dict[str, object]] = {}
    for name in SETTINGS:
        value = resolved.get(name, getattr(settings.config, name))
        effective[name] = {"value": value, "origin": settings.origins[name]}
        if name in capacity.notes:
            effective[name]["note"] = capacity.notes[name]
    return effective


def _bind_metrics(config: Config) -> MetricsEndpoint | None:
    if config.metrics_port == 0:
        return None
    from kvtier.metrics import require_client

    require_client()
    from kvtier.metrics.endpoint import MetricsEndpoint

    return MetricsEndpoint(config.metrics_host, config.metrics_port, named="metrics_port")


def _say_what_was_understood(settings: Settings, capacity: Capacity) -> None:
    for name, text in settings.mapped.items():
        logger.info("%s: %s", name, text)
    for warning in list_warnings(settings, capacity):
        warn_once(("settings", warning), warning)


def _effective_text(effective: Mapping[str, Mapping[str, object]]) -> str:
    return ", ".join(f"{name}={it['value']} ({it['origin']})" for name, it in effective.items())


def _find_num_io_threads(config: Config) -> int:
    chosen = config.num_io_threads
    return chosen if isinstance(chosen, int) else _core.choose_num_io_threads()


def _core_options(config: Config, capacity: Capacity) -> _core.StoreOptions:
    options: _core.StoreOptions = {
        "host_bytes": capacity.host_bytes,
        "prefault_bytes": capacity.prefault_bytes,
        "is_arena_shared": config.shared_arena,
        "numa": config.numa,
        "io": config.io,
        "direct": config.direct,
        "eviction": config.eviction,
        "num_io_threads": _find_num_io_threads(config),
        "has_checksum": config.checksum,
        "is_deleted_on_exit": config.on_exit == "delete",
        "blocks_max": config.max_blocks,
        "lock_wait_s": config.lock_wait_s,
        "stall_s": config.stall_s,
        "default_timeout_s": config.default_timeout_s,
    }
    if config.path is not None:
        options["path"] = os.fspath(config.path)
        options["publish_interval_s"] = PUBLISH_INTERVAL_S
        options["staging_bytes"] = capacity.staging_bytes
        options["disk_bytes"] = capacity.disk_bytes
    return options
