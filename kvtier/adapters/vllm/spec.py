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

from kvtier.adapters.vllm.engine_store import find_engine_store
from kvtier.adapters.vllm.manager import KvtierManager
from kvtier.adapters.vllm.store_metrics import define_metrics
from kvtier.adapters.vllm.worker import KvtierWorker
from kvtier.paged_geometry import FragmentPlace


class KvtierSpec(OffloadingSpec):
    """Both halves use the store that the connector opened for this engine."""

    @classmethod
    def build_metric_definitions(
        cls, extra_config: dict[str, Any]
    ) -> dict[str, OffloadingMetricMetadata]:
        return define_metrics()

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self._engine = find_engine_store(config.engine_id)
        self.offload_prompt_only = not self._engine.settings.save_decode

    def get_manager(self) -> OffloadingManager:
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
        self._engine.attach(
            [cache.tensor for cache in kv_caches.tensors],
            list(fragments.values()),
            num_device_blocks=len(kv_caches.tensors[0].tensor),
            block_tokens=self.tokens_per_block[0],
        )
        return KvtierWorker(self._engine)
