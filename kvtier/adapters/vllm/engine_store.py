"""EngineStore: the store of one engine, in the scheduler's process.

With one worker in that process, its half of the connector shares it, in one thread. Workers in
processes of their own, the ranks, get plans from it. The table of engines is guarded by a lock; an
EngineStore itself is used by the engine's thread only.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import kvtier
from kvtier.adapters.vllm.connector_settings import ConnectorSettings
from kvtier.adapters.vllm.instance_folder import divide_budget, open_store
from kvtier.adapters.vllm.kv_groups import KvGroup
from kvtier.adapters.vllm.rank_setup import GroupSetup, RankSetup, RankShape
from kvtier.adapters.vllm.request_chain import RequestRules
from kvtier.adapters.vllm.stored_group import StoredGroup
from kvtier.core_log import logger, warn_once
from kvtier.errors import KvtierError, UnsupportedError
from kvtier.namespace import Namespace
from kvtier.paged_geometry import FragmentPlace
from kvtier.transfer_settings import TransferSettings
from kvtier.units import format_bytes

GPU_GAIN_TOKENS_MIN: Final = 64
"""A request that loads waits for a step of the engine more; a GPU computes so few beside the others
of a step for nothing. The end of a prompt that is still on the GPU is such a case."""


class EngineStore:
    """A store, and the namespace and device blocks of the engine that uses it."""

    def __init__(
        self,
        settings: ConnectorSettings,
        *,
        identity: dict[str, Any],
        rules: RequestRules,
        groups: Sequence[KvGroup] = (KvGroup(),),
        num_engines: int = 1,
        engine_index: int = 0,
        num_ranks: int | None = None,
        is_replicated: bool = False,
        steps_ahead: int = 1,
        step_tokens_max: int = 8192,
    ) -> None:
        """num_ranks: None, the worker is in this process; is_replicated: ranks have equal KV."""
        self.settings = settings
        self.steps_ahead = steps_ahead
        """1, or 2 where vLLM plans a step while another one runs."""
        self.step_tokens_max = step_tokens_max
        self.rules = rules
        """What holds for requests that say nothing."""
        self._identity = identity
        self._kv_groups = tuple(groups)
        self.store: kvtier.BlockStore | None = None
        self.groups: tuple[StoredGroup, ...] = ()
        """Empty until what all groups have was attached, and after the end."""
        self._attached: list[StoredGroup] = []
        self.num_ranks = num_ranks or 1
        self.rank_setup: RankSetup | None = None
        """For workers in processes of their own, once they have said what they have."""
        self._is_replicated = is_replicated
        self.gain_tokens_min = 0
        """A load that spares fewer tokens than this costs more than computing them."""
        self.generation = 0
        """Counts resets: what was planned before the last one must not be carried out."""
        self.abandon_transfers: Callable[[], None] = lambda: None
        """Set by the worker's half: ends what it has under way."""
        self.halves: Any = None
        """JoinedHalves, once the worker's half has the tensors; None with ranks."""
        self.failed_requests: set[str] = set()
        """Requests with a failed load that the scheduler's half has not heard of yet."""
        if settings.device != "off":
            explicit = divide_budget(settings.store, num_engines)
            if num_ranks is not None:
                explicit = {**explicit, "shared_arena": True}
            self.store = open_store(
                explicit,
                divide_budget(settings.store_defaults, num_engines),
                first_instance=engine_index,
            )

    @property
    def has_both_tiers(self) -> bool:
        """Returns whether a block on disk could be brought nearer before it is loaded."""
        return self.settings.device == "hybrid"

    @property
    def has_disk(self) -> bool:
        """Returns whether blocks may have to be read before they are loaded."""
        return self.settings.device in {"disk", "hybrid"}

    @property
    def folder(self) -> str | None:
        """Returns where the disk tier lies; None: there is none."""
        if self.store is None or not self.has_disk:
            return None
        return str(self.store.config()["path"]["value"])

    @property
    def description(self) -> dict[str, Any]:
        """Returns what tells this engine from others, by what it computes and on what."""
        return {**self._identity, "num_ranks": self.num_ranks}

    @property
    def namespace(self) -> Namespace | None:
        """Returns the first group's; most models have no other."""
        return self.groups[0].namespace if self.groups else None

    @property
    def is_loaded_whole(self) -> bool:
        """Returns whether a request with one block not loaded has to begin anew.

        Blocks before a window, or before a state, are not loaded: what was computed from within
        what was loaded would read them. Beside that, vLLM takes names of blocks from engines with
        one group only.
        """
        first = self._kv_groups[0]
        return not first.is_only or first.window_tokens is not None

    def attach(
        self,
        tensors: Sequence[Any],
        fragments: Sequence[FragmentPlace],
        *,
        num_device_blocks: int,
        block_tokens: int,
        num_hashes: int = 1,
    ) -> None:
        """Takes the engine's KV tensors for its next group.

        Once they are there for all groups there are blocks to save and load.
        num_hashes: hashes that the engine makes for each block.
        """
        if self.store is None:
            return
        kv_group = self._kv_groups[len(self._attached)]
        geometry = kvtier.PagedGeometry(fragments=tuple(fragments))
        namespace = self._open_namespace(
            kv_group, [geometry.block_bytes], block_tokens, geometry.layout
        )
        paged = namespace.attach(list(tensors), geometry)
        group = StoredGroup(group=kv_group, namespace=namespace, paged=paged, num_hashes=num_hashes)
        self._add_group(group, paged.device, num_device_blocks)

    def attach_ranks(self, shapes: Sequence[RankShape]) -> None:
        """Takes what the ranks have: from now on there are blocks to save and load.

        Raises UnsupportedError when they do not fit together.
        """
        if self.store is None:
            return
        ranks = sorted(shapes, key=lambda it: it.rank)
        if [it.rank for it in ranks] != list(range(self.num_ranks)):
            raise UnsupportedError(
                f"expected {self.num_ranks} workers, heard of {[it.rank for it in ranks]}"
            )
        first = ranks[0]
        kinds = {(it.num_device_blocks, it.device == "cpu", len(it.groups)) for it in ranks}
        if len(kinds) > 1 or len(first.groups) != len(self._kv_groups):
            raise UnsupportedError(f"the workers' blocks differ: {sorted(kinds)}")
        for index in range(len(self._kv_groups)):
            shapes_of_group = [it.groups[index] for it in ranks]
            part_bytes = [it.block_bytes for it in shapes_of_group]
            sizes = {(it.block_tokens, it.num_hashes) for it in shapes_of_group}
            if len(sizes) > 1 or (self._is_replicated and len(set(part_bytes)) > 1):
                raise UnsupportedError(
                    f"the workers' blocks differ: {sorted(sizes)}, {part_bytes} bytes"
                )
        for index, kv_group in enumerate(self._kv_groups):
            shapes_of_group = [it.groups[index] for it in ranks]
            part_bytes = [it.block_bytes for it in shapes_of_group]
            namespace = self._open_namespace(
                kv_group,
                part_bytes[:1] if self._is_replicated else part_bytes,
                shapes_of_group[0].block_tokens,
                " ".join(sorted({it.layout for it in shapes_of_group})),
            )
            group = StoredGroup(
                group=kv_group,
                namespace=namespace,
                paged=None,
                num_hashes=shapes_of_group[0].num_hashes,
            )
            self._add_group(group, first.device, first.num_device_blocks)
        self.rank_setup = RankSetup(
            arena=self.store.arena_handle(),
            groups=tuple(
                GroupSetup(namespace_id=group.namespace.id, part_bytes=group.namespace.part_bytes)
                for group in self.groups
            ),
            is_loaded_whole=self.is_loaded_whole,
            transfer_settings=TransferSettings.of_store(self.store.config()),
        )

    def reset(self) -> None:
        """Ends every transfer, planned ones too: the device's blocks may vanish, or be others."""
        self.generation += 1
        self.abandon_transfers()

    def close(self) -> None:
        """Lets the device's blocks go and closes the store. May be called again."""
        for group in self._attached:
            # A job that still uses the tensors keeps them alive until closing ended it.
            with contextlib.suppress(KvtierError):
                if group.paged is not None:
                    group.paged.detach()
        self._attached, self.groups = [], ()
        if self.store is None:
            return
        if self.rank_setup is not None:
            # vLLM ends the workers first: what they have not answered they never will.
            with contextlib.suppress(KvtierError):
                for rank in range(self.num_ranks):
                    self.store.abandon_rank(rank)
        self.store.close()

    def _open_namespace(
        self, kv_group: KvGroup, part_bytes: list[int], block_tokens: int, layout: str
    ) -> Namespace:
        assert self.store is not None
        # vLLM may keep a block's layers apart or together, by version and kind of its runner.
        whole_layout = f"{self._identity['layout']} {kv_group.layout} {layout}"
        identity = {**self._identity, "layout": whole_layout, "group": kv_group.group_id}
        if len(part_bytes) > 1:
            identity["parts"] = part_bytes
        return self.store.namespace(
            block_bytes=sum(part_bytes),
            block_tokens=block_tokens,
            tp_size=1 if self._is_replicated else self.num_ranks,
            **identity,
        )

    def _add_group(self, group: StoredGroup, device: str, num_device_blocks: int) -> None:
        assert self.store is not None
        if device != "cpu":
            self.gain_tokens_min = GPU_GAIN_TOKENS_MIN
        self._attached.append(group)
        if len(self._attached) == len(self._kv_groups):
            self.groups = tuple(self._attached)
        device_bytes = num_device_blocks * group.namespace.block_bytes
        tiers: Any = self.store.stats()["tiers"]
        capacity_bytes = sum(tier["bytes_capacity"] for tier in tiers.values())
        logger.info(
            "vLLM's KV blocks of %s (%d tokens, %s) go to %s: %s",
            format_bytes(group.namespace.block_bytes),
            group.block_tokens,
            group.group.kind,
            self.settings.device,
            ", ".join(f"{name} {format_bytes(it['bytes_capacity'])}" for name, it in tiers.items()),
        )
        if capacity_bytes < device_bytes:
            warn_once(
                ("small", str(capacity_bytes)),
                f"all tiers together hold {format_bytes(capacity_bytes)}, less than the engine's "
                f"own {format_bytes(device_bytes)} of KV: few blocks will be found; raise "
                "kv_max_cpu_memory or use a disk_path",
            )


_lock: Final = threading.Lock()
# Engine id -> its store and the halves of the connector that hold it.
_engines: Final[dict[str, tuple[EngineStore, set[str]]]] = {}


def acquire_engine_store(engine_id: str, half: str, make: Callable[[], EngineStore]) -> EngineStore:
    """Returns the store of an engine, made by the half that comes first.

    Raises UnsupportedError when this half has it already: two connectors in one engine.
    """
    with _lock:
        engine, halves = _engines.get(engine_id) or (make(), set())
        if half in halves:
            raise UnsupportedError(
                "there is a KvtierConnector in this engine already; give a MultiConnector one of "
                "them, with both tiers"
            )
        _engines[engine_id] = (engine, halves | {half})
        return engine


def find_engine_store(engine_id: str) -> EngineStore | None:
    """Returns the store that acquire_engine_store() gave out for this engine in this process."""
    with _lock:
        return _engines.get(engine_id, (None, set()))[0]


def release_engine_store(engine_id: str, half: str) -> None:
    """Closes the store with the last half that lets it go. May be called again."""
    with _lock:
        engine, halves = _engines.get(engine_id, (None, set()))
        if engine is None or half not in halves:
            return
        if halves == {half}:
            del _engines[engine_id]
        else:
            _engines[engine_id] = (engine, halves - {half})
            return
    engine.close()
