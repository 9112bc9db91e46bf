"""Engines whose blocks are the same, and engines whose blocks are not."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_config import (
    FullAttentionSpec,
    OtherBackend,
    make_config,
    make_kv_config,
    make_model_folder,
)

from kvtier.adapters.vllm.engine_identity import describe_engine, find_fingerprint
from kvtier.adapters.vllm.kv_groups import find_groups

WHERE = {"version": "0.32.0", "device_name": "a GPU"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model_folder(tmp_path / "model")


def describe(config: Any, kv_config: Any = None, **where: str) -> dict[str, object]:
    """What the engine and its groups say together."""
    groups = find_groups(config, kv_config or make_kv_config())
    whole = describe_engine(config, fingerprint=None, **{**WHERE, **where})
    return {**whole, "groups": groups}


def test_a_restart_with_the_same_configuration_has_the_same_identity(model: Path) -> None:
    assert describe(make_config(model)) == describe(make_config(model))
    assert describe(make_config(model))["dtype"] == "torch.bfloat16"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_config__dtype", "torch.float16"),
        ("model_config__quantization", "awq"),
        ("model_config__hf_config", SimpleNamespace(to_dict=lambda: {"rope_theta": 1e4})),
        ("cache_config__cache_dtype", "fp8"),
        ("cache_config__kv_cache_layout", "BLHNC"),
        ("cache_config__prefix_caching_hash_algo", "xxhash"),
        (
            "compilation_config__static_forward_context",
            {"layer.0": SimpleNamespace(get_attn_backend=lambda: OtherBackend)},
        ),
        ("speculative_config", SimpleNamespace(method="eagle", model="/no/such/folder")),
        ("load_config__load_format", "dummy"),
    ],
)
def test_a_changed_field_is_another_identity(model: Path, name: str, value: object) -> None:
    assert describe(make_config(model, **{name: value})) != describe(make_config(model))


def test_another_version_or_shape_is_another_identity(model: Path) -> None:
    config = make_config(model)
    assert describe(config, version="0.33.0") != describe(config)
    assert describe(config, device_name="another GPU") != describe(config)
    wide = FullAttentionSpec()
    wide.num_kv_heads = 8
    assert describe(config, make_kv_config(wide)) != describe(config)


def test_a_layout_asked_for_by_variable_is_another_identity(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = describe(make_config(model))
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "HND")
    assert describe(make_config(model)) != before


def test_weights_written_anew_under_their_name_are_others(model: Path) -> None:
    before = describe(make_config(model))
    weights = model / "model.safetensors"
    changed_ns = weights.stat().st_mtime_ns + 1_000_000
    os.utime(weights, ns=(changed_ns, changed_ns))
    assert describe(make_config(model)) != before


def test_another_training_is_another_also_where_all_files_have_one_time(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(bytes(300_000))
    os.utime(weights, ns=(0, 0))
    before = describe(make_config(model))
    assert describe(make_config(model)) == before
    trained = bytearray(300_000)
    trained[150_000] = 1
    weights.write_bytes(trained)
    os.utime(weights, ns=(0, 0))
    assert describe(make_config(model)) != before


@pytest.mark.parametrize(
    "changes",
    [
        {"load_config__load_format": "tensorizer"},
        {"load_config__model_loader_extra_config": {"tensorizer_uri": "s3://x"}},
        {"model_config__model_weights": "s3://bucket/model"},
    ],
)
def test_weights_from_elsewhere_are_new_in_each_process(
    model: Path, changes: dict[str, object]
) -> None:
    config = make_config(model, **changes)
    assert find_fingerprint(config, None) != find_fingerprint(config, None)
    assert find_fingerprint(config, "rev-7") == find_fingerprint(config, "rev-7")


def test_weights_that_cannot_be_told_apart_are_new_in_each_process() -> None:
    config = make_config("someone/no-such-model")
    assert find_fingerprint(config, None) != find_fingerprint(config, None)
    assert find_fingerprint(config, "rev-7") == find_fingerprint(config, "rev-7")
    assert find_fingerprint(config, "rev-7") != find_fingerprint(config, "rev-8")


def test_scales_taken_at_run_time_are_new_in_each_process(model: Path) -> None:
    config = make_config(model, cache_config__calculate_kv_scales=True)
    assert find_fingerprint(config, "rev-7") != find_fingerprint(config, "rev-7")


def test_random_weights_are_told_apart_by_their_seed() -> None:
    first = make_config("m", load_config__load_format="dummy", model_config__seed=1)
    again = make_config("m", load_config__load_format="dummy", model_config__seed=1)
    other = make_config("m", load_config__load_format="dummy", model_config__seed=2)
    assert find_fingerprint(first, None) == find_fingerprint(again, None)
    assert find_fingerprint(first, None) != find_fingerprint(other, None)
