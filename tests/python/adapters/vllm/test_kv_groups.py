"""What an engine's groups of KV layers are."""

from types import SimpleNamespace
from typing import Any

from engine_config import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    OtherBackend,
    SlidingWindowSpec,
    make_config,
    make_kv_config,
)

from kvtier.adapters.vllm.kv_groups import KvGroup, find_groups


def groups_of(*specs: object, **changes: Any) -> tuple[KvGroup, ...]:
    return find_groups(make_config("m", **changes), make_kv_config(*specs))


def test_each_kind_says_how_far_before_its_end_a_hit_reaches() -> None:
    groups = groups_of(
        FullAttentionSpec(), SlidingWindowSpec(), ChunkedLocalAttentionSpec(), MambaSpec()
    )
    assert [it.group_id for it in groups] == [0, 1, 2, 3]
    assert [it.window_tokens for it in groups] == [None, 96, 128, 1]
    assert [it.kind for it in groups] == [
        "FullAttentionSpec",
        "SlidingWindowSpec",
        "ChunkedLocalAttentionSpec",
        "MambaSpec",
    ]


def test_layers_of_several_kinds_in_one_group_need_what_any_of_them_needs() -> None:
    wide = SlidingWindowSpec()
    wide.sliding_window = 200
    for specs, window_tokens in (
        ([SlidingWindowSpec(), wide], 200),
        ([SlidingWindowSpec(), FullAttentionSpec()], None),
    ):
        layers = {f"layer.{it}": spec for it, spec in enumerate(specs)}
        (group,) = groups_of(SimpleNamespace(kv_cache_specs=layers, page_size_bytes=65536))
        assert group.window_tokens == window_tokens


def test_groups_that_vllm_keeps_out_of_its_hashes_are_left_out() -> None:
    config = make_kv_config(FullAttentionSpec(), SlidingWindowSpec(), MambaSpec())
    config.prefix_cacheable_group_ids = (0, 2)
    groups = find_groups(make_config("m"), config)
    assert [(it.group_id, it.kind) for it in groups] == [(0, "FullAttentionSpec"), (2, "MambaSpec")]
    assert not groups[0].is_only
    assert groups_of(FullAttentionSpec())[0].is_only


def test_any_difference_in_a_group_is_another_layout() -> None:
    window, state, other_layers = SlidingWindowSpec(), MambaSpec(), make_kv_config()
    window.sliding_window = 97
    state.shapes = ((3, 64), (4, 16, 33))
    other_layers.kv_cache_groups[0].layer_names = ["layer.0", "layer.2"]
    other_backend = {"layer.0": SimpleNamespace(get_attn_backend=lambda: OtherBackend)}
    groups = [
        *groups_of(FullAttentionSpec()),
        *groups_of(SlidingWindowSpec()),
        *groups_of(window),
        *groups_of(MambaSpec()),
        *groups_of(state),
        *groups_of(compilation_config__static_forward_context=other_backend),
        *find_groups(make_config("m"), other_layers),
    ]
    assert len({it.layout for it in groups}) == len(groups)
    assert groups_of(MambaSpec()) == groups_of(MambaSpec())
