"""Where vLLM's canonical KV tensors have the blocks of each group."""

from types import SimpleNamespace
from typing import Any

import pytest
import vllm_engine
from vllm.distributed.kv_transfer.kv_connector.v1.offloading import worker as vllm_worker
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_offload.base import CanonicalKVCaches

import kvtier
from kvtier.adapters.vllm.spec import count_hashes, place_fragments

torch: Any = vllm_engine.torch

NUM_BLOCKS = 6
SHAPE: dict[str, Any] = {"num_kv_heads": 2, "head_size": 16, "dtype": torch.float32}


def canonicalise(
    groups: list[KVCacheGroupSpec], kv_caches: dict[str, Any], monkeypatch: Any
) -> CanonicalKVCaches:
    """Returns what vLLM's own worker hands to a connector."""
    seen: list[CanonicalKVCaches] = []
    monkeypatch.setattr(vllm_worker, "derive_canonical_mappings", lambda *_: {})
    spec: Any = SimpleNamespace(
        replicated_layout=False,
        config=SimpleNamespace(canonical_layout=False, parallel=SimpleNamespace(rank=0)),
        get_worker=seen.append,
    )
    config = KVCacheConfig(
        num_blocks=NUM_BLOCKS,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
    )
    vllm_worker.OffloadingConnectorWorker(spec, SimpleNamespace(), config).register_kv_caches(  # type: ignore[arg-type]
        kv_caches
    )
    (canonical,) = seen
    return canonical


def geometries(canonical: CanonicalKVCaches) -> list[kvtier.PagedGeometry]:
    return [
        kvtier.PagedGeometry(fragments=tuple(place_fragments(canonical, refs)))
        for refs in canonical.group_data_refs
    ]


def test_groups_that_share_tensors_have_all_their_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    full = FullAttentionSpec(block_size=16, **SHAPE)
    window = SlidingWindowSpec(block_size=16, sliding_window=48, **SHAPE)
    assert full.page_size_bytes == window.page_size_bytes
    tensors = [torch.zeros(NUM_BLOCKS, full.page_size_bytes // 4) for _ in range(2)]
    groups = [
        KVCacheGroupSpec(["full.0", "full.1"], full),
        KVCacheGroupSpec(["window.0", "window.1"], window),
        KVCacheGroupSpec(["window.2"], window),
    ]
    names = [("full.0", "window.0", "window.2"), ("full.1", "window.1")]
    kv_caches = {
        name: tensor for tensor, sharing in zip(tensors, names, strict=True) for name in sharing
    }
    first, second, third = geometries(canonicalise(groups, kv_caches, monkeypatch))
    assert first.block_bytes == second.block_bytes == 2 * full.page_size_bytes
    assert third.block_bytes == full.page_size_bytes
    assert {it.stride_bytes for it in first.fragments} == {full.page_size_bytes}


def test_a_state_is_kept_with_its_parts_and_without_its_padding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = FullAttentionSpec(block_size=16, **SHAPE)
    state = MambaSpec(
        block_size=16,
        shapes=((3, 40), (2, 8, 16)),
        dtypes=(torch.float32, torch.float32),
        page_size_padded=full.page_size_bytes,
        mamba_cache_mode="align",
    )
    state_bytes = 4 * (3 * 40 + 2 * 8 * 16)
    assert state.page_size_bytes == full.page_size_bytes > state_bytes
    tensor = torch.zeros(NUM_BLOCKS, full.page_size_bytes // 4)
    groups = [KVCacheGroupSpec(["full.0"], full), KVCacheGroupSpec(["state.0"], state)]
    kv_caches = {"full.0": tensor, "state.0": tensor}
    first, second = geometries(canonicalise(groups, kv_caches, monkeypatch))
    assert first.block_bytes == full.page_size_bytes
    assert second.block_bytes == state_bytes
    assert second.fragments[0].stride_bytes == full.page_size_bytes


def test_a_latent_of_each_layer_makes_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    latent = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
    names = [f"layer.{it}" for it in range(3)]
    kv_caches = {name: torch.zeros(NUM_BLOCKS, 16, 576, dtype=torch.bfloat16) for name in names}
    canonical = canonicalise([KVCacheGroupSpec(names, latent)], kv_caches, monkeypatch)
    (geometry,) = geometries(canonical)
    assert latent.page_size_bytes == 16 * 576 * 2
    assert [it.fragment_bytes for it in geometry.fragments] == [latent.page_size_bytes] * 3
    for number, name in enumerate(names):
        kv_caches[name][4] = number + 1
    store = kvtier.open(host_bytes="4MiB")
    namespace = store.namespace(model="m", fingerprint="f", block_bytes=geometry.block_bytes)
    paged = namespace.attach([it.tensor for it in canonical.tensors], geometry)
    key = namespace.key(b"k").reshape(1, -1)
    paged.save(key, [4]).wait()
    assert paged.load(key, [1]).wait().num_blocks == 1
    for number, name in enumerate(names):
        assert (kv_caches[name][1] == number + 1).all()
        assert (kv_caches[name][2] == 0).all()
    store.close()


def test_a_layer_that_is_named_twice_is_kept_once() -> None:
    tensor = torch.zeros(NUM_BLOCKS, 4096, dtype=torch.int8)
    caches: Any = SimpleNamespace(tensors=[SimpleNamespace(tensor=tensor)])
    refs = [SimpleNamespace(tensor_idx=0, page_size_bytes=it) for it in (1000, 4096, 2000)]
    (fragment,) = place_fragments(caches, refs)
    assert fragment.fragment_bytes == 4096


def test_blocks_that_are_no_multiple_of_what_is_hashed_are_refused() -> None:
    assert [count_hashes(64, it) for it in (64, 32, 16)] == [1, 2, 4]
    with pytest.raises(kvtier.UnsupportedError, match=r"48 tokens.*has 64.*--prefix-match-unit"):
        count_hashes(64, 48)
