"""What the doctor says of a folder that can be used, and of those that cannot."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from kvtier import _core
from kvtier.cli.doctor.finding import Level
from kvtier.cli.doctor.path_checks import (
    TriedFolder,
    check_direct,
    check_fallocate,
    check_file_system,
    check_space,
    check_writable,
    try_folder,
)
from kvtier.file_system import FileSystem
from kvtier.units import GIB, MIB


def probe(**changes: Any) -> _core.DirectoryProbe:
    fields: dict[str, Any] = {
        "is_writable": True,
        "write_error": "",
        "file_system": "ext4",
        "file_system_block_bytes": 4096,
        "direct_alignment_memory_bytes": 4,
        "direct_alignment_offset_bytes": 512,
        "is_alignment_reported": True,
        "direct_write_error": "",
        "fallocate_error": "",
        "free_bytes": 8 * GIB,
        "read_gb_per_s": 0.0,
        "write_gb_per_s": 0.0,
        **changes,
    }
    return fields  # type: ignore[return-value]


def mount(**changes: Any) -> FileSystem:
    fields: dict[str, Any] = {
        "kind": "ext4",
        "mount_point": "/d",
        "is_system_disk": False,
        "is_rotational": False,
        "disks": ("nvme0n1",),
        "bus": "nvme",
        **changes,
    }
    return FileSystem(**fields)


def test_a_folder_that_is_not_there_yet_is_tried_in_its_parent(disk_folder: Path) -> None:
    tried = try_folder(str(disk_folder / "a" / "b"))
    assert (tried.folder, tried.error, tried.is_there) == (str(disk_folder), None, False)
    assert "does not exist yet" in check_writable(tried).text
    assert list(disk_folder.iterdir()) == []
    assert "does not exist yet" not in check_writable(try_folder(str(disk_folder))).text


def test_a_file_in_the_way_is_named_k4(disk_folder: Path) -> None:
    (disk_folder / "file").write_text("x")
    found = check_writable(try_folder(str(disk_folder / "file" / "b")))
    assert found.level is Level.FAIL
    assert "is not a folder" in found.text
    assert "(ENOTDIR)" in found.text
    assert "move the file away" in found.remedy


def test_a_link_to_nowhere_is_named_k4(disk_folder: Path) -> None:
    (disk_folder / "link").symlink_to(disk_folder / "missing")
    found = check_writable(try_folder(str(disk_folder / "link")))
    assert found.level is Level.FAIL
    assert found.remedy


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EROFS, "read-write"),
        (errno.EACCES, f"uid {os.geteuid()}"),
        (errno.EPERM, "write access to /d"),
        (errno.ENOSPC, "larger disk"),
        (errno.ESTALE, "mount the network file system again"),
    ],
)
def test_a_refusal_is_named_with_its_errno_and_remedy_k4(code: int, remedy: str) -> None:
    refused = OSError(code, os.strerror(code))
    found = check_writable(TriedFolder(path="/d/x", folder="/d", error=refused))
    assert found.level is Level.FAIL
    assert f"({errno.errorcode[code]})" in found.text
    assert remedy in found.remedy
    assert "no disk tier" in found.why


def test_an_error_of_the_trial_is_kept(monkeypatch: pytest.MonkeyPatch, disk_folder: Path) -> None:
    def refuse(**_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    error = try_folder(str(disk_folder)).error
    assert error is not None
    assert error.errno == errno.EROFS


@pytest.mark.parametrize(("free_bytes", "level"), [(8 * GIB, Level.OK), (100 * MIB, Level.WARN)])
def test_little_space_is_named_with_what_auto_makes_of_it(
    disk_folder: Path, free_bytes: int, level: Level
) -> None:
    found = check_space(str(disk_folder / "missing"), free_bytes)
    assert found.level is level
    assert "6.39 GiB" in found.text or "80 MiB" in found.text


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({}, Level.OK, "ext4 at /d, medium ssd (nvme0n1, nvme), blocks of 4 KiB"),
        ({"is_system_disk": True}, Level.NOTE, "the system disk"),
        ({"bus": "sata"}, Level.WARN, "0.55 GB/s"),
        ({"is_rotational": True}, Level.WARN, "slower than computing again"),
        ({"kind": "nfs4"}, Level.WARN, "wait for the network"),
        ({"kind": "tmpfs"}, Level.WARN, "lost with it"),
        ({"kind": "btrfs"}, Level.WARN, "fill the page cache"),
        ({"kind": "ecryptfs"}, Level.WARN, "buffered"),
        ({"kind": "overlay"}, Level.WARN, "gone with the container"),
    ],
)
def test_each_poor_place_is_named_a5_e12(changes: dict[str, Any], level: Level, words: str) -> None:
    found = check_file_system("/d/x", mount(**changes), 4096)
    assert len(found) == 1
    assert found[0].level is level
    assert words in f"{found[0].text} {found[0].why}"
    assert bool(found[0].remedy) is (level is not Level.OK)


def test_direct_io_and_fallocate_that_work_give_their_figures() -> None:
    found = check_direct(probe())
    assert (found.level, check_fallocate(probe()).level) == (Level.OK, Level.OK)
    assert "alignment 512 bytes in the file, 4 in memory (reported by statx)" in found.text
    assert "(assumed)" in check_direct(probe(is_alignment_reported=False)).text


def test_direct_io_and_fallocate_that_do_not_work_give_the_reason_e3() -> None:
    for found in (
        check_direct(probe(direct_write_error="EINVAL here")),
        check_fallocate(probe(fallocate_error="EINVAL here")),
    ):
        assert found.level is Level.WARN
        assert "EINVAL here" in found.text
        assert "ext4 or xfs" in found.remedy
