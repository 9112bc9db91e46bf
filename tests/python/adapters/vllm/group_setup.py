"""An engine with two groups on the same tensors: full attention, and a window in larger blocks."""

from typing import Any

from half_setup import BLOCK_TOKENS, IDENTITY, LAYER_BYTES, NUM_DEVICE_BLOCKS, Request, make_tensors

from kvtier.adapters.vllm.connector_settings import parse_connector_settings
from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.kv_groups import KvGroup
from kvtier.adapters.vllm.request_chain import RequestRules
from kvtier.paged_geometry import FragmentPlace

NUM_HASHES = 2
WINDOW_BLOCK_TOKENS = NUM_HASHES * BLOCK_TOKENS
WINDOW_TOKENS = 2 * WINDOW_BLOCK_TOKENS - 3
PREFIX_GROUP = KvGroup(group_id=0, kind="FullAttentionSpec", layout="full", is_only=False)
WINDOW_GROUP = KvGroup(
    group_id=3,
    kind="SlidingWindowSpec",
    window_tokens=WINDOW_TOKENS,
    layout="window",
    is_only=False,
)
WINDOW_LAYER_BYTES = (2000, 1000)


def make_group_engine(**extra: Any) -> EngineStore:
    return EngineStore(
        parse_connector_settings({"kv_max_cpu_memory": "4MiB", **extra}),
        identity=dict(IDENTITY),
        rules=RequestRules(),
        groups=(PREFIX_GROUP, WINDOW_GROUP),
    )


def attach_groups(engine: EngineStore) -> list[Any]:
    """A page of the second group is shorter than the room that the first one's has."""
    tensors = make_tensors()
    for pages, block_tokens, num_hashes in (
        (LAYER_BYTES, BLOCK_TOKENS, 1),
        (WINDOW_LAYER_BYTES, WINDOW_BLOCK_TOKENS, NUM_HASHES),
    ):
        fragments = [
            FragmentPlace(it, 0, stride_bytes, page_bytes)
            for it, (stride_bytes, page_bytes) in enumerate(zip(LAYER_BYTES, pages, strict=True))
        ]
        engine.attach(
            tensors,
            fragments,
            num_device_blocks=NUM_DEVICE_BLOCKS,
            block_tokens=block_tokens,
            num_hashes=num_hashes,
        )
    return tensors


def window_keys(request: Request, start: int = 0, end: int | None = None) -> list[bytes]:
    """vLLM's keys of the second group."""
    hashes = request.block_hashes[NUM_HASHES - 1 :: NUM_HASHES]
    return [it + WINDOW_GROUP.group_id.to_bytes(4, "big") for it in hashes[start:end]]
