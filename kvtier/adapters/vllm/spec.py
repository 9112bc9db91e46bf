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
from kvtier.adapters.vllm.rank_setup import GroupShape, RankShape
from kvtier.adapters.vllm.rank_worker import RankWorker
from kvtier.adapters.vllm.store_metrics import define_metrics
from kvtier.adapters.vllm.worker import KvtierWorker
from kvtier.errors import UnsupportedError
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
        tells_events = bool(getattr(self.config, "enable_kv_cache_events", False))
        return KvtierManager(self._engine, tells_events=tells_events)

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        tensors = [cache.tensor for cache in kv_caches.tensors]
        if self._engine is None:
            return self._get_rank_worker(kv_caches, tensors)
        for refs, block_tokens in zip(
            kv_caches.group_data_refs, self.tokens_per_block, strict=True
        ):
            self._engine.attach(
                tensors,
                place_fragments(kv_caches, refs),
                num_device_blocks=len(tensors[0]),
                block_tokens=block_tokens,
                num_hashes=count_hashes(block_tokens, self._hash_tokens),
            )
        return KvtierWorker(self._engine, loads_wait_for_steps=self._loads_wait_for_steps)

    @property
    def _hash_tokens(self) -> int:
        # vLLM 0.26 hashes block by block where it has one group, the only case served there.
        return int(getattr(self, "tokens_per_hash", self.tokens_per_block[0]))

    def _get_rank_worker(self, kv_caches: CanonicalKVCaches, tensors: list[Any]) -> RankWorker:
        geometries = [
            PagedGeometry(fragments=tuple(place_fragments(kv_caches, refs)))
            for refs in kv_caches.group_data_refs
        ]
        groups = tuple(
            GroupShape(
                block_bytes=geometry.block_bytes,
                block_tokens=block_tokens,
                num_hashes=count_hashes(block_tokens, self._hash_tokens),
                layout=geometry.layout,
            )
            for geometry, block_tokens in zip(geometries, self.tokens_per_block, strict=True)
        )
        shape = RankShape(
            rank=self._rank,
            groups=groups,
            num_device_blocks=len(tensors[0]),
            device=str(tensors[0].device),
        )
        return RankWorker(
            tensors, geometries, shape, loads_wait_for_steps=self._loads_wait_for_steps
        )


def place_fragments(kv_caches: CanonicalKVCaches, refs: Any) -> list[FragmentPlace]:
    """Returns where the blocks of the group with these references lie in the tensors."""
    fragments: dict[int, FragmentPlace] = {}
    for ref in refs:
        # Layers that share their KV name one tensor twice: its bytes are kept once.
        known = fragments.get(ref.tensor_idx)
        fragments[ref.tensor_idx] = FragmentPlace(
            tensor_index=ref.tensor_idx,
            offset_bytes=0,
            stride_bytes=kv_caches.tensors[ref.tensor_idx].tensor.stride(0),
            fragment_bytes=max(ref.page_size_bytes, 0 if known is None else known.fragment_bytes),
        )
    return list(fragments.values())


def count_hashes(block_tokens: int, hash_tokens: int) -> int:
    """Returns how many of vLLM's hashes make one block.

    Raises UnsupportedError: no whole number.
    """
    if block_tokens % hash_tokens:
        raise UnsupportedError(
            f"vLLM hashes {hash_tokens} tokens at a time, and a block of one of its groups has "
            f"{block_tokens}: not a multiple; use --enable-prefix-caching, and a "
            "--prefix-match-unit that divides the block sizes of all groups"
        )
    return block_tokens // hash_tokens
