"""vLLM's own scheduler half of its offloading connector, on a manager of ours."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from group_setup import WINDOW_BLOCK_TOKENS, WINDOW_GROUP
from half_setup import BLOCK_TOKENS, Request
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm.v1.kv_offload.base import OffloadingKVEventsConfig

from kvtier.adapters.vllm.manager import KvtierManager

SHAPE: dict[str, Any] = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}


class ManagedScheduler:
    """On vLLM's groups with these specs, of which `group_ids` are the connector's."""

    def __init__(
        self,
        manager: KvtierManager,
        kv_specs: Sequence[Any],
        group_ids: Sequence[int],
        *,
        hash_tokens: int = BLOCK_TOKENS,
    ) -> None:
        self._manager = manager
        self._hash_tokens = hash_tokens
        groups = [
            SimpleNamespace(kv_cache_spec=spec, layer_names=["l"], is_eagle_group=False)
            for spec in kv_specs
        ]
        sizes = [(it, kv_specs[it].block_size) for it in group_ids]
        spec: Any = SimpleNamespace(
            config=SimpleNamespace(
                groups=[
                    SimpleNamespace(group_id=group_id, tokens_per_block=block_tokens)
                    for group_id, block_tokens in sizes
                ]
            ),
            blocks_per_chunk=1,
            tokens_per_hash=hash_tokens,
            tokens_per_block=tuple(block_tokens for _, block_tokens in sizes),
            offload_prompt_only=False,
            get_manager=lambda: manager,
            kv_events_config=OffloadingKVEventsConfig(False, False),
        )
        config: Any = SimpleNamespace(
            cache_config=SimpleNamespace(
                prefix_cache_retention_interval=None, enable_prefix_caching=True
            ),
            speculative_config=None,
            parallel_config=SimpleNamespace(decode_context_parallel_size=1, world_size=1),
        )
        kv_config: Any = SimpleNamespace(kv_cache_groups=groups)
        self._scheduler = OffloadingConnectorScheduler(spec, config, kv_config)

    def find_hit(
        self, request: Request, num_computed_tokens: int = 0, *, num_tokens_more: int = 0
    ) -> int | None:
        """Returns how many tokens vLLM would load.

        num_tokens_more: of the request, beyond its last whole block.
        """
        num_tokens = len(request.block_hashes) * self._hash_tokens + num_tokens_more
        asked: Any = SimpleNamespace(
            request_id=request.request_id,
            num_tokens=num_tokens,
            num_prompt_tokens=request.num_prompt_tokens,
            block_hashes=request.block_hashes,
            kv_transfer_params=None,
            kv_hints=None,
            skip_reading_prefix_cache=False,
        )
        self._scheduler.on_new_request(asked)
        self._manager.resolve(request, num_computed_tokens)
        num_hit, _ = self._scheduler.get_num_new_matched_tokens(asked, num_computed_tokens)
        return num_hit


def make_scheduler(manager: KvtierManager, *, window_tokens: int) -> ManagedScheduler:
    """Two groups: full attention, and a window."""
    full = FullAttentionSpec(block_size=BLOCK_TOKENS, **SHAPE)
    window = SlidingWindowSpec(
        block_size=WINDOW_BLOCK_TOKENS, sliding_window=window_tokens, **SHAPE
    )
    # vLLM numbers the groups of its configuration; those between are none of the connector's.
    return ManagedScheduler(manager, (full, full, full, window), (0, WINDOW_GROUP.group_id))
