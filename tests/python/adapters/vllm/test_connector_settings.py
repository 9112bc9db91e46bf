"""What a user may say in kv_connector_extra_config."""

import pytest

import kvtier
from kvtier.adapters.vllm import connector_settings
from kvtier.adapters.vllm.connector_settings import (
    DISK_MODE_HOST_BYTES,
    parse_connector_settings,
)


def problems_of(**extra: object) -> str:
    with pytest.raises(kvtier.ConfigError) as raised:
        parse_connector_settings(extra)
    return str(raised.value)


def test_nothing_said_means_host_memory_with_generated_tokens() -> None:
    settings = parse_connector_settings({})
    assert (settings.device, settings.save_decode, settings.fingerprint) == ("cpu", True, None)
    assert dict(settings.store) == {}


def test_a_folder_alone_means_both_tiers() -> None:
    settings = parse_connector_settings({"disk_path": "/kv"})
    assert (settings.device, settings.path) == ("hybrid", "/kv")


def test_a_folder_named_by_a_variable_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTIER_PATH", "/kv")
    assert parse_connector_settings({}).device == "hybrid"
    assert parse_connector_settings({"kv_device": "disk"}).device == "disk"


def test_other_tools_names_reach_the_store_under_its_own() -> None:
    settings = parse_connector_settings(
        {"disk_path": "/kv", "kv_max_cpu_memory": "2GiB", "num_io_threads": "4", "io": "threads"}
    )
    assert dict(settings.store) == {
        "path": "/kv",
        "host_bytes": 2 << 30,
        "num_io_threads": 4,
        "io": "threads",
    }


def test_disk_keeps_a_little_memory_for_saves_unless_told_otherwise() -> None:
    settings = parse_connector_settings({"kv_device": "disk", "disk_path": "/kv"})
    assert settings.store_defaults["host_bytes"] == DISK_MODE_HOST_BYTES
    assert "host_bytes" not in settings.store
    said = parse_connector_settings(
        {"kv_device": "disk", "disk_path": "/kv", "kv_max_cpu_memory": "1MiB"}
    )
    assert said.store["host_bytes"] == 1 << 20


@pytest.mark.parametrize(
    ("said", "cap"),
    [(1, 1.0), ("0.5", 0.5), ("off", None), (False, None), (" OFF ", None), (100, 100.0)],
)
def test_the_load_cap_is_a_share_of_computing_or_off(said: object, cap: float | None) -> None:
    assert parse_connector_settings({"load_cap": said}).load_cap == cap
    assert parse_connector_settings({}).load_cap == 1.0


@pytest.mark.parametrize("said", [0, -1, "much", None, True, float("nan"), 101, [1]])
def test_a_load_cap_that_means_nothing_is_refused(said: object) -> None:
    with pytest.raises(kvtier.ConfigError, match="load_cap: expected"):
        parse_connector_settings({"load_cap": said})


@pytest.mark.parametrize(("unified", "is_one"), [("on", True), ("off", False), ("auto", False)])
def test_where_memory_is_one_hybrid_keeps_no_more_of_it_than_disk_f10(
    unified: str, is_one: bool
) -> None:
    said = {"kv_device": "hybrid", "disk_path": "/kv", "unified": unified}
    defaults = parse_connector_settings(said).store_defaults
    assert defaults.get("host_bytes") == (DISK_MODE_HOST_BYTES if is_one else None)
    assert "host_bytes" not in parse_connector_settings({"kv_device": "cpu"}).store_defaults


def test_a_gpu_that_is_known_to_use_the_machines_memory_counts_f10(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connector_settings, "unified_gpu", lambda: "NVIDIA GB10")
    said = {"kv_device": "hybrid", "disk_path": "/kv"}
    assert "host_bytes" in parse_connector_settings(said).store_defaults
    assert "host_bytes" not in parse_connector_settings(said | {"unified": "off"}).store_defaults


def test_what_the_environment_says_of_one_memory_counts_f10(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = {"kv_device": "hybrid", "disk_path": "/kv"}
    monkeypatch.setenv("KVTIER_UNIFIED", "on")
    assert "host_bytes" in parse_connector_settings(said).store_defaults
    monkeypatch.setattr(connector_settings, "unified_gpu", lambda: "NVIDIA GB10")
    monkeypatch.setenv("KVTIER_UNIFIED", "off")
    assert "host_bytes" not in parse_connector_settings(said).store_defaults


def test_saves_are_gentle_unless_told_otherwise() -> None:
    assert parse_connector_settings({}).store_defaults["gentle_saves"] is True
    assert parse_connector_settings({"gentle_saves": False}).store["gentle_saves"] is False


@pytest.mark.parametrize("word", ["off", "OFF", False])
def test_off_needs_nothing(word: object) -> None:
    settings = parse_connector_settings({"kv_device": word, "disk_path": "/kv"})
    assert settings.device == "off"
    assert dict(settings.store) == {}


@pytest.mark.parametrize(
    ("said", "near"),
    [
        ("disk_pth", "disk_path"),
        ("kv_max_cpu_mem", "kv_max_cpu_memory"),
        ("kv_devce", "kv_device"),
        ("save_decoded", "save_decode"),
        ("host_byte", "host_bytes"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(said: str, near: str) -> None:
    message = problems_of(**{said: "x"})
    assert repr(said) in message
    assert f"did you mean {near}?" in message


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"kv_device": "gpu"}, ["kv_device", "cpu, disk, hybrid, off", "'gpu'"]),
        ({"kv_device": "cpu", "disk_path": "/kv"}, ["disk_path", "hybrid"]),
        ({"kv_device": "cpu", "kv_max_cpu_memory": 0}, ["kv_max_cpu_memory", "off"]),
        ({"kv_device": "disk"}, ["disk_path", "SSD"]),
        ({"kv_device": "hybrid"}, ["disk_path", "SSD"]),
        ({"disk_path": "/kv", "kv_max_cpu_memory": "0"}, ["kv_max_cpu_memory", "leave it out"]),
        ({"disk_path": "/kv", "path": "/other"}, ["disk_path and path", "'/kv'", "'/other'"]),
        ({"kv_max_cpu_memory": "64 bananas"}, ["kv_max_cpu_memory", "bananas"]),
        ({"save_decode": "maybe"}, ["save_decode", "'maybe'"]),
        ({"fingerprint": 5}, ["fingerprint", "5"]),
        ({"block_size": 256}, ["block_size", "--block-size"]),
        ({"blocks_per_chunk": 4}, ["blocks_per_chunk", "--block-size"]),
        ({"offload_prompt_only": True}, ["offload_prompt_only", "save_decode"]),
        ({"shared": True}, ["shared", "store of its own"]),
    ],
)
def test_a_bad_value_is_refused_with_what_to_do(extra: dict[str, object], words: list[str]) -> None:
    message = problems_of(**extra)
    for word in words:
        assert word in message


def test_all_problems_are_said_at_once() -> None:
    message = problems_of(kv_device="gpu", kv_max_cpu_memory="x", nonsense=1)
    for word in ("kv_device", "kv_max_cpu_memory", "nonsense"):
        assert word in message


def test_the_same_value_under_two_names_is_no_contradiction() -> None:
    assert parse_connector_settings({"disk_path": "/kv", "path": "/kv"}).path == "/kv"


def test_what_the_adapter_itself_adds_is_no_unknown_name() -> None:
    parse_connector_settings({"spec_name": "KvtierSpec", "spec_module_path": "x"})


def test_whether_events_describe_themselves_is_said_to_vllm_and_so_no_text() -> None:
    assert parse_connector_settings({"self_describing_kv_events": True}).device == "cpu"
    # vLLM would take it for true.
    problem = problems_of(self_describing_kv_events="false")
    assert "self_describing_kv_events: expected true or false, got 'false'" in problem
