"""KvtierConnector: vLLM's offloading connector on a kvtier store.

Not thread-safe: each half is used by one thread of the engine.
"""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from vllm import __version__ as vllm_version
from vllm.config import VllmConfig, get_current_vllm_config_or_none
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.platforms import current_platform
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from kvtier.adapters.vllm.compatibility import (
    check_engine,
    check_version,
    has_ranks,
    has_replicated_kv,
    warn_of_double_offloading,
)
from kvtier.adapters.vllm.connector_settings import LOADS_WAIT, parse_connector_settings
from kvtier.adapters.vllm.engine_identity import describe_engine
from kvtier.adapters.vllm.engine_store import (
    EngineStore,
    acquire_engine_store,
    release_engine_store,
)
from kvtier.adapters.vllm.hash_seed import fix_hash_seed
from kvtier.adapters.vllm.joined_halves import JoinedHalves
from kvtier.adapters.vllm.kv_groups import find_groups
from kvtier.adapters.vllm.manager import KvtierManager
from kvtier.adapters.vllm.rank_messages import RankHandshake, RankMetadata, RankReport
from kvtier.adapters.vllm.rank_planner import RankPlanner
from kvtier.adapters.vllm.rank_worker import RankWorker
from kvtier.adapters.vllm.request_chain import RequestRules
from kvtier.adapters.vllm.request_rules import has_ended_well, num_committed_tokens
from kvtier.adapters.vllm.worker import KvtierWorker

STEPS_UNDER_WAY: Final = 2
"""Steps that vLLM may have planned before it has the output of the first of them."""


class KvtierConnector(OffloadingConnector):
    """vLLM's scheduler logic with kvtier's manager and worker.

    vLLM's own worker stops when a transfer fails. Here a failed load ends like any other, and its
    blocks are named in the same step by get_block_ids_with_load_errors(), or their requests by
    get_transfer_results().
    """

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        check_version(vllm_version)
        check_engine(
            vllm_config,
            kv_cache_config,
            can_fail_requests=hasattr(KVConnectorBase_V1, "get_transfer_results"),
        )
        transfer_config = vllm_config.kv_transfer_config
        # vLLM would end a request whose load failed; what was not loaded can be computed.
        transfer_config.kv_load_failure_policy = "recompute"
        self._engine_id = str(transfer_config.engine_id)
        self._half = role.name
        self._engine: EngineStore | None = None
        self._planner: RankPlanner | None = None
        self._group_layouts: list[str] = []
        self._unproved: dict[str, int] = {}
        """Requests with blocks that a load may still fill, or have failed to fill: the number of
        steps that they are in since they got those blocks.
        """
        # Inside a MultiConnector it is that one's.
        outer_config = get_current_vllm_config_or_none() or vllm_config
        self._is_inside = outer_config.kv_transfer_config is not transfer_config
        if role == KVConnectorRole.SCHEDULER or not has_ranks(vllm_config):
            self._engine = acquire_engine_store(
                self._engine_id, self._half, lambda: _open_engine(vllm_config, kv_cache_config)
            )
        else:
            # How layers lay out their blocks is known where they are.
            groups = find_groups(vllm_config, kv_cache_config)
            self._group_layouts = [group.layout for group in groups]
        if self._engine is not None and has_ranks(vllm_config):
            self._planner = RankPlanner(self._engine)
        _select_spec(vllm_config)
        extra_config = transfer_config.kv_connector_extra_config
        extra_config[LOADS_WAIT] = _may_steps_write_to_loads(outer_config, kv_cache_config)
        try:
            super().__init__(vllm_config, role, kv_cache_config)
        except BaseException:
            release_engine_store(self._engine_id, self._half)
            raise
        if self.connector_scheduler is not None and not self._manager.tells_events:
            # vLLM looks up each block by itself; a long prompt has thousands.
            self.connector_scheduler._maximal_prefix_lookup = self._manager.count_hits

    def register_kv_caches(self, kv_caches: Any) -> None:
        super().register_kv_caches(kv_caches)
        self._join_halves()

    def register_cross_layers_kv_cache(self, kv_cache: Any, attn_backend: Any) -> None:
        super().register_cross_layers_kv_cache(kv_cache, attn_backend)
        self._join_halves()

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        # A MultiConnector hands one of its connectors' to all of them.
        return None if self._is_inside else self._make_handshake()

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        if self._planner is not None:
            known = [it for it in metadata.values() if isinstance(it, RankHandshake)]
            self._planner.add_shapes(it.shape for it in known)

    def update_state_after_alloc(
        self, request: Request, blocks: Any, num_external_tokens: int
    ) -> None:
        """Plans a load, and starts it: the step with which vLLM would is not even made yet."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._unproved[request.request_id] = 0
        self._manager.admit(request, num_external_tokens)
        if num_external_tokens > 0 and self._halves is not None:
            jobs = self.connector_scheduler._current_batch_load_jobs
            self._halves.start_load(*next(reversed(jobs.items())))

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        if self._halves is not None:
            self._halves.begin_step(is_empty=scheduler_output.total_num_scheduled_tokens == 0)
        self._manager.note_step(scheduler_output.num_scheduled_tokens)
        with self._holding_saves(scheduler_output.num_scheduled_tokens):
            metadata: Any = super().build_connector_meta(scheduler_output)
        return metadata if self._planner is None else self._planner.plan(metadata)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        self._receive(kv_connector_metadata)
        super().handle_preemptions(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._receive(self._connector_metadata)
        super().start_load_kv(forward_context, **kwargs)

    def build_connector_worker_meta(self) -> OffloadingWorkerMetadata | None:
        report: OffloadingWorkerMetadata | None = super().build_connector_worker_meta()
        worker = self._rank_worker
        if worker is None:
            return self._report_something() if report is None else report
        answers, failed = worker.take_answers(), worker.take_failed_requests()
        shapes = []
        if not worker.is_known and (handshake := self._make_handshake()) is not None:
            shapes.append(handshake.shape)
        if report is None and not answers and not failed and not shapes:
            return None
        return RankReport.extend(report, answers=answers, failed_requests=failed, shapes=shapes)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        self._manager.resolve(request, num_computed_tokens)
        found: tuple[int | None, bool] = super().get_num_new_matched_tokens(
            request, num_computed_tokens
        )
        return found

    def get_block_ids_with_load_errors(self) -> set[int]:
        worker = self.connector_worker.worker
        is_ours = isinstance(worker, KvtierWorker | RankWorker)
        return worker.take_failed_block_ids() if is_ours else set()

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        results = super().get_transfer_results(finished_req_ids)
        worker = self.connector_worker.worker
        if isinstance(worker, KvtierWorker | RankWorker):
            results.failed_recving.update(worker.take_failed_request_ids())
        return results

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        if self._planner is not None:
            self._planner.take_report(connector_output.kv_connector_worker_meta)
        told = connector_output.kv_connector_worker_meta
        if self._halves is not None:
            self._halves.add_ended(connector_output)
        super().update_connector_output(connector_output)
        # Inside a MultiConnector others read it too.
        connector_output.kv_connector_worker_meta = told
        assert self._engine is not None
        failed, self._engine.failed_requests = self._engine.failed_requests, set()
        for request_id in failed:
            self._manager.forbid_loading(request_id)
            self._offer_again(request_id)

    def request_finished(self, request: Request, block_ids: list[int]) -> Any:
        self._limit_last_saves(request, (block_ids,))
        self._manager.note_answered(request.request_id)
        return super().request_finished(request, block_ids)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> Any:
        self._limit_last_saves(request, block_ids)
        self._manager.note_answered(request.request_id)
        return super().request_finished_all_groups(request, block_ids)

    def shutdown(self) -> None:
        try:
            super().shutdown()
        finally:
            release_engine_store(self._engine_id, self._half)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics:
        _select_spec(vllm_config)
        return super().build_prom_metrics(
            vllm_config, metric_types, labelnames, per_engine_labelvalues
        )

    @property
    def _manager(self) -> KvtierManager:
        manager: KvtierManager = self.connector_scheduler.manager
        return manager

    @property
    def _rank_worker(self) -> RankWorker | None:
        worker = None if self.connector_worker is None else self.connector_worker.worker
        return worker if isinstance(worker, RankWorker) else None

    def _make_handshake(self) -> RankHandshake | None:
        worker = self._rank_worker
        if worker is None:
            return None
        groups = tuple(
            replace(group, layout=f"{group.layout} {layout}")
            for group, layout in zip(worker.shape.groups, self._group_layouts, strict=True)
        )
        return RankHandshake(replace(worker.shape, groups=groups))

    def _receive(self, metadata: Any) -> None:
        if self._rank_worker is not None and isinstance(metadata, RankMetadata):
            self._rank_worker.receive(metadata)

    @property
    def _halves(self) -> JoinedHalves | None:
        halves: JoinedHalves | None = None if self._engine is None else self._engine.halves
        return halves

    def _join_halves(self) -> None:
        worker = self.connector_worker.worker
        if self._engine is not None and isinstance(worker, KvtierWorker):
            self._engine.halves = JoinedHalves(worker, self.connector_worker)

    def _report_something(self) -> OffloadingWorkerMetadata | None:
        """Returns a report while transfers are under way: for none vLLM would skip
        update_connector_output().
        """
        worker = self.connector_worker.worker
        has_some = isinstance(worker, KvtierWorker) and worker.has_transfers
        return OffloadingWorkerMetadata() if has_some else None

    def _limit_last_saves(self, request: Request, block_ids: Sequence[list[int]]) -> None:
        """Keeps vLLM from saving what an ended request did not compute, or holds no more.

        block_ids: what it holds, for all of vLLM's groups. What vLLM's scheduler noted may be the
        blocks of before a preemption, or of before they left a window: they are others' by now.
        Tokens that another connector is to load count as computed before they have arrived; one
        that ended well had all of its steps judged.
        """
        is_unproved = self._unproved.pop(request.request_id, None) is not None
        status = self.connector_scheduler._req_status.get(request.request_id)
        groups = () if self._engine is None else self._engine.groups
        if status is None or not groups:
            return
        is_doubtful = is_unproved and not has_ended_well(request)
        num_tokens = 0 if is_doubtful else num_committed_tokens(request)
        for group, group_state in zip(groups, status.group_states, strict=True):
            group_state.block_ids[:] = block_ids[group.group.group_id]
            num_tokens = min(num_tokens, len(group_state.block_ids) * group.block_tokens)
        limit = status.max_offload_tokens
        status.max_offload_tokens = num_tokens if limit is None else min(limit, num_tokens)
        if self._halves is not None:
            for group, group_state in zip(groups, status.group_states, strict=True):
                first, end = group_state.next_stored_chunk_idx, num_tokens // group.block_tokens
                self._halves.note_unsaved(group_state.block_ids[first:end])

    @contextlib.contextmanager
    def _holding_saves(self, scheduled: Collection[str]) -> Iterator[None]:
        """Keeps vLLM from saving what another connector has loaded before that was found good.

        scheduled: the requests of the step that is being planned. A load that fails is told with
        the output of its step, when vLLM may have planned the next one: its saves would read blocks
        that nobody filled. What is held is saved in a later step, or when the request ends.
        """
        limits: list[tuple[Any, int | None]] = []
        for request_id in [it for it in self._unproved if it in scheduled]:
            self._unproved[request_id] += 1
            if not self._is_inside or self._unproved[request_id] > STEPS_UNDER_WAY:
                del self._unproved[request_id]
                continue
            status = self.connector_scheduler._req_status.get(request_id)
            if status is not None:
                limits.append((status, status.max_offload_tokens))
                status.max_offload_tokens = 0
        try:
            yield
        finally:
            for status, limit in limits:
                status.max_offload_tokens = limit

    def _offer_again(self, request_id: str) -> None:
        """Lets blocks that will be computed after a failed load be saved like new ones."""
        status = self.connector_scheduler._req_status.get(request_id)
        for group_state in () if status is None else status.group_states:
            group_state.next_stored_chunk_idx = 0


def _may_steps_write_to_loads(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> bool:
    """Returns whether a step under way may write to blocks that a load was given.

    vLLM keeps the blocks of ended requests back until no step writes to them any more, when its
    connector is one that loads. It does not wait for a drafter, and does not take back a step's
    zeroing of blocks that are a load's by then. Loads that waited for steps without need would
    be held up by their length.
    """
    are_blocks_kept_back = (
        hasattr(Scheduler, "_drain_deferred_frees")
        and vllm_config.kv_transfer_config.is_kv_consumer
    )
    return (
        not are_blocks_kept_back
        or vllm_config.speculative_config is not None
        or getattr(kv_cache_config, "needs_kv_cache_zeroing", True)
    )


def _open_engine(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> EngineStore:
    transfer_config, parallel_config = vllm_config.kv_transfer_config, vllm_config.parallel_config
    settings = parse_connector_settings(transfer_config.kv_connector_extra_config)
    warn_of_double_offloading(vllm_config)
    if settings.device in {"disk", "hybrid"}:
        # Before what depends on it: vLLM's first hash, and our description of the engine.
        fix_hash_seed(
            str(getattr(vllm_config.cache_config, "prefix_caching_hash_algo", "")),
            is_random=not hasattr(kv_cache_utils, "resolve_none_hash_seed"),
        )
    return EngineStore(
        settings,
        identity=describe_engine(
            vllm_config,
            version=vllm_version,
            device_name=str(current_platform.get_device_name()),
            fingerprint=settings.fingerprint,
        ),
        rules=RequestRules(
            is_loading=transfer_config.kv_role != "kv_producer",
            is_saving=transfer_config.kv_role != "kv_consumer",
            saves_decode=settings.save_decode,
            may_pin=settings.allow_pins,
        ),
        groups=find_groups(vllm_config, kv_cache_config),
        num_engines=parallel_config.data_parallel_size,
        engine_index=parallel_config.data_parallel_index,
        num_ranks=parallel_config.world_size if has_ranks(vllm_config) else None,
        is_replicated=has_replicated_kv(vllm_config, kv_cache_config),
        steps_ahead=2 if vllm_config.scheduler_config.async_scheduling else 1,
        step_tokens_max=vllm_config.scheduler_config.max_num_batched_tokens,
    )


def _select_spec(vllm_config: VllmConfig) -> None:
    """Names the spec that vLLM's connector makes its halves from."""
    extra_config = vllm_config.kv_transfer_config.kv_connector_extra_config
    extra_config["spec_name"] = "KvtierSpec"
    extra_config["spec_module_path"] = "kvtier.adapters.vllm.spec"
