"""Engines that are refused at the start, with what to change."""

import logging
from types import SimpleNamespace

import pytest
from engine_config import (
    CrossAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    make_config,
    make_kv_config,
)

import kvtier
from kvtier import core_log
from kvtier.adapters.vllm.compatibility import (
    check_engine,
    check_version,
    has_ranks,
    has_replicated_kv,
    warn_of_double_offloading,
)


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_log, "_said_once", set())


def test_one_worker_in_the_scheduler_s_process_is_served() -> None:
    check_engine(make_config("m"), make_kv_config())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"parallel_config__distributed_executor_backend": None}, False),
        ({"parallel_config__distributed_executor_backend": "mp"}, True),
        (
            {"parallel_config__world_size": 2, "parallel_config__tensor_parallel_size": 2},
            True,
        ),
    ],
)
def test_workers_in_processes_of_their_own_are_served(
    changes: dict[str, object], expected: bool
) -> None:
    config = make_config("m", **changes)
    check_engine(config, make_kv_config())
    assert has_ranks(config) == expected


def test_latent_kv_is_the_same_in_all_ranks() -> None:
    two = make_config("m", parallel_config__world_size=2)
    assert has_replicated_kv(two, make_kv_config(MLAAttentionSpec()))
    assert not has_replicated_kv(two, make_kv_config())
    assert not has_replicated_kv(make_config("m"), make_kv_config(MLAAttentionSpec()))


@pytest.mark.parametrize("role", ["kv_both", "kv_producer", "kv_consumer"])
def test_every_role_is_served(role: str) -> None:
    check_engine(make_config("m", kv_transfer_config__kv_role=role), make_kv_config())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"parallel_config__pipeline_parallel_size": 2},
            ["pipeline_parallel_size is 2", "--pipeline-parallel-size 1"],
        ),
        (
            {"parallel_config__decode_context_parallel_size": 4},
            ["decode_context_parallel_size is 4", "--decode-context-parallel-size 1"],
        ),
        ({"parallel_config__nnodes": 2}, ["nnodes is 2"]),
        (
            {"parallel_config__distributed_executor_backend": "ray"},
            ["'ray'", "--distributed-executor-backend mp"],
        ),
        (
            {
                "parallel_config__distributed_executor_backend": "mp",
                "model_config__enable_sleep_mode": True,
            },
            ["enable_sleep_mode", "leave sleep mode or kvtier out"],
        ),
        ({"kv_transfer_config__kv_role": "kv_none"}, ["kv_both", "kv_none"]),
    ],
)
def test_an_engine_of_another_make_is_refused(changes: dict[str, object], words: list[str]) -> None:
    with pytest.raises(kvtier.UnsupportedError) as raised:
        check_engine(make_config("m", **changes), make_kv_config())
    for word in words:
        assert word in str(raised.value)


def test_models_with_windows_and_states_are_served() -> None:
    groups = make_kv_config(FullAttentionSpec(), SlidingWindowSpec(), MambaSpec())
    check_engine(make_config("m"), groups)
    check_engine(make_config("m"), make_kv_config(SlidingWindowSpec()))
    layers = {"a": FullAttentionSpec(), "b": SlidingWindowSpec()}
    check_engine(make_config("m"), make_kv_config(SimpleNamespace(kv_cache_specs=layers)))


@pytest.mark.parametrize(
    "specs", [(FullAttentionSpec(), FullAttentionSpec()), (SlidingWindowSpec(),), (MambaSpec(),)]
)
def test_a_vllm_that_cannot_compute_a_whole_request_again_is_refused(
    specs: tuple[object, ...],
) -> None:
    config = make_config("m")
    with pytest.raises(kvtier.UnsupportedError, match=r"vLLM 0\.32 or later"):
        check_engine(config, make_kv_config(*specs), can_fail_requests=False)
    check_engine(config, make_kv_config(), can_fail_requests=False)


def test_layers_of_a_kind_that_is_not_served_are_refused() -> None:
    for spec in (
        CrossAttentionSpec(),
        SimpleNamespace(kv_cache_specs={"a": FullAttentionSpec(), "b": CrossAttentionSpec()}),
    ):
        with pytest.raises(kvtier.UnsupportedError, match="CrossAttentionSpec"):
            check_engine(make_config("m"), make_kv_config(FullAttentionSpec(), spec))


def test_a_state_that_is_not_kept_block_by_block_is_refused() -> None:
    state = MambaSpec()
    for mode in ("none", "all"):
        state.mamba_cache_mode = mode
        with pytest.raises(kvtier.UnsupportedError, match=rf"'{mode}'.*--mamba-cache-mode align"):
            check_engine(make_config("m"), make_kv_config(FullAttentionSpec(), state))


def test_an_unproved_version_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kvtier"):
        check_version("0.32.0+cpu")
        assert not caplog.records
        check_version("0.99.1")
        check_version("0.99.1")
    assert len(caplog.records) == 1
    assert "0.99.1" in caplog.text


def test_offloading_twice_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kvtier"):
        warn_of_double_offloading(make_config("m"))
        assert not caplog.records
        warn_of_double_offloading(make_config("m", cache_config__kv_offloading_size=4.0))
    assert "kv_offloading_size" in caplog.text
