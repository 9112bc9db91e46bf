"""Engines that are given one folder, and what each of them gets."""

import logging
from pathlib import Path

import pytest

import kvtier
from kvtier.adapters.vllm import instance_folder
from kvtier.adapters.vllm.instance_folder import divide_budget, open_store
from kvtier.machine import memory_limit

SIZES = {"host_bytes": 4 << 20, "disk_bytes": 16 << 20, "staging_bytes": 1 << 20}


def path_of(store: kvtier.BlockStore) -> str:
    return str(store.config()["path"]["value"])


def test_a_free_folder_is_used_itself(disk_folder: Path) -> None:
    with open_store({"path": disk_folder, **SIZES}, {}) as store:
        assert path_of(store) == str(disk_folder)


def test_a_busy_folder_gives_the_first_free_instance(
    disk_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = {"path": disk_folder, **SIZES}
    with open_store(arguments, {}) as first, caplog.at_level(logging.WARNING, "kvtier"):
        with open_store(arguments, {}) as second, open_store(arguments, {}) as third:
            paths = [path_of(store) for store in (first, second, third)]
        names = ["", "instance-1", "instance-2"]
        assert paths == [str(disk_folder / name) for name in names]
        said = [it.getMessage() for it in caplog.records if "instance-" in it.getMessage()]
        assert len(said) == 1
        assert "lock_wait_s" in said[0]
        with open_store(arguments, {}) as again:
            assert path_of(again) == paths[1]


def test_an_instance_never_sees_another_one_s_blocks_b9(disk_folder: Path) -> None:
    arguments = {"path": disk_folder, **SIZES}
    name = {"model": "m", "block_bytes": 4096, "fingerprint": "f"}
    with open_store(arguments, {}) as first, open_store(arguments, {}) as second:
        mine, other = (it.namespace(**name) for it in (first, second))  # type: ignore[arg-type]
        keys = mine.keys(range(16))
        assert mine.put(keys, bytes(4096)).num_accepted == 1
        first.flush()
        assert other.lookup(keys).num_blocks == 0
        assert other.get(keys, bytearray(4096)).num_blocks == 0
        assert mine.get(keys, bytearray(4096)).num_blocks == 1


def test_blocks_of_an_instance_are_found_again_after_a_restart(disk_folder: Path) -> None:
    arguments = {"path": disk_folder, **SIZES}
    name = {"model": "m", "block_bytes": 4096, "fingerprint": "f"}
    with open_store(arguments, {}, first_instance=2) as store:
        assert path_of(store) == str(disk_folder / "instance-2")
        namespace = store.namespace(**name)  # type: ignore[arg-type]
        keys = namespace.keys(range(16))
        assert namespace.put(keys, bytes(4096)).num_accepted == 1
        store.flush()
    with open_store(arguments, {}, first_instance=2) as store:
        assert store.namespace(**name).lookup(keys).num_blocks == 1  # type: ignore[arg-type]
    with open_store(arguments, {}) as store:
        assert store.namespace(**name).lookup(keys).num_blocks == 0  # type: ignore[arg-type]


def test_a_folder_whose_instances_are_all_busy_is_refused(
    disk_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_folder, "INSTANCES_MAX", 2)
    arguments = {"path": disk_folder, **SIZES}
    with (
        open_store(arguments, {}),
        open_store(arguments, {}),
        pytest.raises(kvtier.StoreBusyError, match="disk_path of its own"),
    ):
        open_store(arguments, {})


def test_defaults_stand_beneath_what_was_said() -> None:
    with open_store({}, {"host_bytes": 2 << 20}) as store:
        assert store.config()["host_bytes"]["value"] == 2 << 20
    with open_store({"host_bytes": 3 << 20}, {"host_bytes": 2 << 20}) as store:
        assert store.config()["host_bytes"]["value"] == 3 << 20


def test_engines_of_a_group_share_the_budget() -> None:
    assert divide_budget({"host_bytes": 80, "disk_bytes": 800, "io": "auto"}, 8) == {
        "host_bytes": 10,
        "disk_bytes": 100,
        "io": "auto",
    }
    assert divide_budget({"host_bytes": 80}, 1) == {"host_bytes": 80}
    assert divide_budget({}, 1) == {}


def test_engines_of_a_group_together_take_no_more_memory_than_one() -> None:
    whole_bytes = memory_limit().limit_bytes
    each_bytes = divide_budget({}, 8)["host_bytes"]
    assert isinstance(each_bytes, int)
    assert 8 * each_bytes <= whole_bytes * 0.21
