"""What is said of the place of a disk tier, from invented mount tables."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import kvtier
from kvtier.file_system import FileSystem, find_concerns, find_file_system

MOUNTS = """\
27 1 254:0 / / rw - ext4 /dev/vda rw
25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw
40 27 0:50 / {folder}/memory rw - tmpfs tmpfs rw
41 27 0:51 / {folder}/net\\040work rw - nfs4 server:/export rw
42 27 259:1 / {folder}/data rw - xfs /dev/nvme0n1 rw
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    mounts = MOUNTS.format(folder=str(tmp_path).replace(" ", "\\040"))
    (tmp_path / "proc/self/mountinfo").write_text(mounts)
    for name in ("memory", "net work", "data"):
        (tmp_path / name).mkdir()
    return tmp_path / "proc"


@pytest.mark.parametrize(
    ("name", "kind", "medium", "word"),
    [("memory", "tmpfs", "memory", "tmpfs"), ("net work", "nfs4", "network", "network")],
)
def test_memory_and_network_are_named_a5(
    tmp_path: Path, proc: Path, name: str, kind: str, medium: str, word: str
) -> None:
    path = tmp_path / name / "not" / "there" / "yet"
    found = find_file_system(path, proc, tmp_path / "sys")
    assert (found.kind, found.medium) == (kind, medium)
    concerns = find_concerns(path, found)
    assert word in concerns[0]
    assert "local SSD" in concerns[0]


def test_a_data_disk_gives_no_concern(tmp_path: Path, proc: Path) -> None:
    found = find_file_system(tmp_path / "data", proc, tmp_path / "sys")
    assert (found.kind, found.is_system_disk) == ("xfs", False)
    assert find_concerns(tmp_path / "data", found) == []


@pytest.mark.parametrize("kind", ["ecryptfs", "btrfs", "zfs"])
def test_file_systems_that_cache_in_spite_of_direct_io_are_named_e12(kind: str) -> None:
    found = FileSystem(kind=kind, mount_point="/d", is_system_disk=False, is_rotational=False)
    (concern,) = find_concerns("/d/blocks", found)
    assert kind in concern
    assert "choose ext4 or xfs" in concern


def test_a_store_says_at_open_that_its_file_system_caches_in_spite_of_direct_io_e12(
    open_store: Callable[..., kvtier.BlockStore],
    disk_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = FileSystem(kind="btrfs", mount_point="/", is_system_disk=False, is_rotational=False)
    monkeypatch.setattr("kvtier.store_warnings.find_file_system", lambda *_: found)
    with caplog.at_level(logging.WARNING, "kvtier"):
        open_store(disk_folder / "s", host_bytes="1MiB", disk_bytes="8MiB")
    assert "choose ext4 or xfs" in caplog.text


def test_the_temporary_folder_of_the_system_disk_is_named_a5(tmp_path: Path, proc: Path) -> None:
    found = find_file_system("/tmp", proc, tmp_path / "sys")
    assert found.is_system_disk
    assert "temporary folder" in " ".join(find_concerns("/tmp/kv", found))


def test_a_parent_that_may_not_be_searched_is_passed_by_k4(
    tmp_path: Path, proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_stat = os.stat

    def refuse(path: object, *arguments: object, **options: object) -> os.stat_result:
        if str(path).endswith("closed/x"):
            raise PermissionError(13, "Permission denied")
        return real_stat(path, *arguments, **options)  # type: ignore[arg-type]

    (tmp_path / "data/closed").mkdir()
    monkeypatch.setattr(os, "stat", refuse)
    found = find_file_system(tmp_path / "data/closed/x", proc, tmp_path / "sys")
    assert found.kind == "xfs"


def test_without_a_mount_table_nothing_is_claimed(tmp_path: Path) -> None:
    found = find_file_system(tmp_path, tmp_path / "no-proc", tmp_path / "no-sys")
    assert (found.kind, found.medium, found.is_system_disk) == ("", "unknown", False)


@pytest.mark.parametrize(
    ("bus", "is_named"), [("sata", True), ("usb", True), ("nvme", False), ("virtual", False)]
)
def test_a_disk_behind_a_slow_bus_is_named_with_its_rate_a5(bus: str, is_named: bool) -> None:
    found = FileSystem(
        kind="ext4", mount_point="/d", is_system_disk=False, is_rotational=False, bus=bus
    )
    concerns = find_concerns("/d/blocks", found)
    assert len(concerns) == is_named
    if is_named:
        assert bus.upper() in concerns[0]
        assert "GB/s" in concerns[0]
        assert "NVMe" in concerns[0]


def test_the_disk_beneath_a_mount_is_known_by_name_and_bus(tmp_path: Path, proc: Path) -> None:
    device = tmp_path.stat().st_dev
    disk = tmp_path / "sys/devices/pci0000:00/ata1/host0/block/sda"
    (disk / "queue").mkdir(parents=True)
    (disk / "queue/rotational").write_text("0\n")
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    name = f"{os.major(device)}:{os.minor(device)}"
    (tmp_path / "sys/dev/block" / name).symlink_to(disk)
    found = find_file_system(tmp_path / "data", proc, tmp_path / "sys")
    assert (found.disks, found.bus, found.medium) == (("sda",), "sata", "ssd")
