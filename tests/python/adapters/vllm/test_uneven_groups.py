"""Groups of 16, 256 and 3,584 tokens a block, one of them a state: report J2."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import vllm_engine
from half_setup import IDENTITY, LAYER_BYTES, NUM_DEVICE_BLOCKS, Request, make_tensors
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec
from vllm_scheduler import SHAPE, ManagedScheduler

from kvtier.adapters.vllm.connector_settings import parse_connector_settings
from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.kv_groups import KvGroup
from kvtier.adapters.vllm.manager import KvtierManager
from kvtier.adapters.vllm.request_chain import RequestRules
from kvtier.paged_geometry import FragmentPlace

torch: Any = vllm_engine.torch

HASH_TOKENS = 16
STATE_TOKENS = 3584
BLOCK_TOKENS = (HASH_TOKENS, 256, STATE_TOKENS)
NUM_STATES = 4
NUM_HASHES = NUM_STATES * STATE_TOKENS // HASH_TOKENS
GROUPS = (
    KvGroup(group_id=0, kind="FullAttentionSpec", layout="full", is_only=False),
    KvGroup(
        group_id=1, kind="SlidingWindowSpec", window_tokens=500, layout="window", is_only=False
    ),
    KvGroup(group_id=2, kind="MambaSpec", window_tokens=1, layout="state", is_only=False),
)


@pytest.fixture
def engine() -> Iterator[EngineStore]:
    made = EngineStore(
        parse_connector_settings({"kv_max_cpu_memory": "16MiB"}),
        identity=dict(IDENTITY),
        rules=RequestRules(),
        groups=GROUPS,
    )
    tensors = make_tensors()
    for block_tokens in BLOCK_TOKENS:
        made.attach(
            tensors,
            [FragmentPlace(0, 0, LAYER_BYTES[0], 1000)],
            num_device_blocks=NUM_DEVICE_BLOCKS,
            block_tokens=block_tokens,
            num_hashes=block_tokens // HASH_TOKENS,
        )
    yield made
    made.close()


def make_scheduler(manager: KvtierManager) -> ManagedScheduler:
    specs = (
        FullAttentionSpec(block_size=BLOCK_TOKENS[0], **SHAPE),
        SlidingWindowSpec(block_size=BLOCK_TOKENS[1], sliding_window=500, **SHAPE),
        MambaSpec(
            block_size=BLOCK_TOKENS[2],
            shapes=((2, 4),),
            dtypes=(torch.float32,),
            mamba_cache_mode="align",
        ),
    )
    return ManagedScheduler(manager, specs, (0, 1, 2), hash_tokens=HASH_TOKENS)


def keys_of(request: Request) -> list[bytes]:
    """vLLM's names of the blocks of all groups: of each block its last hash."""
    keys = []
    for group, block_tokens in zip(GROUPS, BLOCK_TOKENS, strict=True):
        num = block_tokens // HASH_TOKENS
        suffix = group.group_id.to_bytes(4, "big")
        keys += [it + suffix for it in request.block_hashes[num - 1 :: num]]
    return keys


def save_all(engine: EngineStore, manager: KvtierManager, request: Request) -> Any:
    """Saves as the worker would; returns the keys of the states."""
    manager.resolve(request, 0)
    output: Any = manager.prepare_store(keys_of(request), request.context)
    for group, save in zip(engine.groups, output.store_spec.groups, strict=True):
        data = np.zeros((len(save.keys), group.namespace.block_bytes), dtype=np.uint8)
        options = {"parent": save.parent, "chain": save.is_chain}
        assert group.namespace.put(save.keys, data, **options).num_accepted == len(save.keys)
    return output.store_spec.groups[2].keys


def test_without_a_state_a_hit_ends_at_the_one_before_j2(engine: EngineStore) -> None:
    manager = KvtierManager(engine)
    scheduler = make_scheduler(manager)
    num_tokens = NUM_HASHES * HASH_TOKENS
    states = save_all(engine, manager, Request("saved", NUM_HASHES, num_prompt_tokens=num_tokens))
    assert len(states) == NUM_STATES

    def find_hit(name: str) -> int | None:
        request = Request(name, NUM_HASHES, num_prompt_tokens=num_tokens + 5)
        return scheduler.find_hit(request, num_tokens_more=5)

    assert find_hit("all") == NUM_STATES * STATE_TOKENS
    for left in (3, 2, 1):
        assert engine.groups[2].namespace.delete(states[left : left + 1]) == 1
        assert find_hit(f"{left} left") == left * STATE_TOKENS
