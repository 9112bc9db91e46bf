"""What is said when a store is opened: of settings, of its folder, of the machine."""

import logging
from pathlib import Path

import numpy as np
import pytest
from foreign_files import EDGE_FILE
from payload import payloads

import kvtier
from kvtier.capacity import Capacity
from kvtier.file_system import FileSystem
from kvtier.settings import resolve_settings
from kvtier.store_warnings import list_warnings

SIZES = {"host_bytes": "8MiB", "disk_bytes": "64MiB", "staging_bytes": "4MiB"}


@pytest.fixture(autouse=True)
def data_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tests run is no matter: every folder lies on a disk of its own."""
    place_on(monkeypatch, is_system_disk=False)


def place_on(monkeypatch: pytest.MonkeyPatch, *, is_system_disk: bool) -> None:
    found = FileSystem(
        kind="ext4", mount_point="/d", is_system_disk=is_system_disk, is_rotational=False
    )
    monkeypatch.setattr("kvtier.store_warnings.find_file_system", lambda *_: found)


def warnings_on(proc: Path, *, host_bytes: int = 1 << 20, **arguments: object) -> tuple[str, ...]:
    capacity = Capacity(
        host_bytes=host_bytes, staging_bytes=0, disk_bytes=0, prefault_bytes=0, notes={}
    )
    return list_warnings(resolve_settings(arguments, None, {}), capacity, proc)


def write_proc(proc: Path, *, swap_kib: int, swappiness: int) -> Path:
    (proc / "sys/vm").mkdir(parents=True)
    (proc / "meminfo").write_text(f"SwapTotal: {swap_kib} kB\n")
    (proc / "sys/vm/swappiness").write_text(f"{swappiness}\n")
    return proc


def test_a_good_machine_is_not_warned_about(tmp_path: Path) -> None:
    proc = write_proc(tmp_path, swap_kib=0, swappiness=60)
    assert warnings_on(proc, path="/d/kv") == ()
    assert warnings_on(tmp_path / "unreadable", path="/d/kv") == ()


def test_the_system_disk_is_warned_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place_on(monkeypatch, is_system_disk=True)
    (warning,) = warnings_on(tmp_path, path="/d/kv")
    assert "system disk" in warning
    assert warnings_on(tmp_path) == ()


def test_swap_is_warned_about_where_the_kernel_likes_to_use_it(tmp_path: Path) -> None:
    proc = write_proc(tmp_path, swap_kib=1 << 20, swappiness=60)
    (warning,) = warnings_on(proc)
    assert "1 GiB of swap" in warning
    assert "vm.swappiness=1" in warning
    assert warnings_on(proc, host_bytes=0, path="/d/kv") == ()
    (proc / "sys/vm/swappiness").write_text("1\n")
    assert warnings_on(proc) == ()


def test_each_mapping_and_each_warning_is_logged_once(
    disk_folder: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvtier.core_log._said_once", set())
    source = {
        "storage": {"chunk_size": 128, "local_disk": str(disk_folder / "s"), "prefetch_ratio": 0.3}
    }
    with caplog.at_level(logging.INFO, "kvtier"), kvtier.open(config=source, **SIZES) as store:
        assert store.config()["path"]["value"] == str(disk_folder / "s")
    levels: dict[str, list[int]] = {}
    for it in caplog.records:
        if it.getMessage().startswith("storage."):
            levels.setdefault(it.getMessage().split(":")[0], []).append(it.levelno)
    assert levels == {
        "storage.chunk_size": [logging.INFO],
        "storage.local_disk": [logging.INFO],
        "storage.prefetch_ratio": [logging.INFO, logging.WARNING],
    }
    caplog.clear()
    kvtier.open(config=source, **SIZES).close()
    assert not [it for it in caplog.records if "prefetch_ratio" in it.getMessage()]


def test_the_file_of_an_edge_box_opens_a_store_that_works(disk_folder: Path) -> None:
    file = disk_folder / "edge.yaml"
    file.write_text(EDGE_FILE.format(folder=f"file://{disk_folder}/kv"))
    with kvtier.open(config=file) as store:
        effective = store.config()
        assert effective["path"] == {"value": f"{disk_folder}/kv", "origin": "file"}
        assert effective["disk_bytes"]["value"] == 500 * 10**9
        ns = store.namespace(model="m", block_bytes=4096, fingerprint="f")
        keys = ns.keys(range(64))
        data = payloads(keys, 1, 4096)
        assert ns.put(keys, data).num_accepted == 4
        store.flush(30)
        out = np.zeros_like(data)
        assert ns.get(keys, out).num_blocks == 4
        assert (out == data).all()
