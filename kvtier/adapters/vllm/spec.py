"""KvtierSpec: how vLLM's offloading connector gets the two halves of this adapter.

Not thread-safe: made and used by the engine's thread.
"""

from typing import Any

from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    OffloadingManager,
    OffloadingMetricMetadata,
    OffloadingSpec,
    OffloadingWorker,
)
from vllm.v1.kv_offload.config import OffloadingConfig

from kvtier.adapters.vllm.connector_settings import LOADS_WAIT
from kvtier.adapters.vllm.engine_store import find_engine_store
from kvtier.adapters.vllm.manager import KvtierManager
from kvtier.adapters.vllm.rank_setup import RankShape
from kvtier.adapters.vllm.rank_worker import RankWorker
from kvtier.adapters.vllm.store_metrics import define_metrics
from kvtier.adapters.vllm.worker import KvtierWorker
from kvtier.paged_geometry import FragmentPlace, PagedGeometry


class KvtierSpec(OffloadingSpec):
    """Both halves use the store that the connector opened for this engine.

    A worker in a process of its own has none there: it gets plans from the scheduler's process.
    """

    @classmethod
    def build_metric_definitions(
        cls, extra_config: dict[str, Any]
    ) -> dict[str, OffloadingMetricMetadata]:
        return define_metrics()

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self._engine = find_engine_store(config.engine_id)
        self._rank = config.parallel.rank
        self._loads_wait_for_steps = bool(config.extra_config.get(LOADS_WAIT, True))
        if self._engine is not None:
            self.offload_prompt_only = not self._engine.settings.save_decode

    def get_manager(self) -> OffloadingManager:
        assert self._engine is not None
        return KvtierManager(self._engine)

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        (refs,) = kv_caches.group_data_refs
        fragments: dict[int, FragmentPlace] = {}
        for ref in refs:
            # Layers that share their KV name one tensor twice: its bytes are kept once.
            stride_bytes = kv_caches.tensors[ref.tensor_idx].tensor.stride(0)
            fragments[ref.tensor_idx] = FragmentPlace(
                tensor_index=ref.tensor_idx,
                offset_bytes=0,
                stride_bytes=stride_bytes,
                fragment_bytes=ref.page_size_bytes,
            )
        tensors = [cache.tensor for cache in kv_caches.tensors]
        num_device_blocks, block_tokens = len(tensors[0]), self.tokens_per_block[0]
        if self._engine is not None:
            self._engine.attach(
                tensors,
                list(fragments.values()),
                num_device_blocks=num_device_blocks,
                block_tokens=block_tokens,
            )
            return KvtierWorker(self._engine, loads_wait_for_steps=self._loads_wait_for_steps)
        geometry = PagedGeometry(fragments=tuple(fragments.values()))
        shape = RankShape(
            rank=self._rank,
            block_bytes=geometry.block_bytes,
            block_tokens=block_tokens,
            num_device_blocks=num_device_blocks,
            layout=geometry.layout,
            device=str(tensors[0].device),
        )
        return RankWorker(tensors, geometry, shape, loads_wait_for_steps=self._loads_wait_for_steps)
