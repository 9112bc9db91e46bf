"""What the doctor says of memory on machines that are not this one."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvtier.cli.doctor import memory_checks
from kvtier.cli.doctor.finding import Level
from kvtier.cli.doctor.memory_checks import (
    check_huge_pages,
    check_memlock,
    check_memory,
    check_numa,
    check_shared_memory,
    check_swap,
)
from kvtier.units import GIB, MIB


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "proc/meminfo", f"MemAvailable: {10 * GIB >> 10} kB\nSwapTotal: 0 kB")
    write(tmp_path / "proc/self/mountinfo", "31 23 0:28 / /g rw - cgroup2 cgroup2 rw")
    write(tmp_path / "proc/self/cgroup", "0::/")
    return tmp_path


def test_auto_takes_a_fifth_of_what_is_available(root: Path) -> None:
    found = check_memory(root)
    assert found.level is Level.OK
    assert "limit 10 GiB by MemAvailable" in found.text
    assert "host_bytes=auto takes 2 GiB" in found.text


def test_the_limit_of_a_container_is_named_with_its_file_f11(root: Path) -> None:
    write(root / "g/memory.high", str(GIB))
    found = check_memory(root)
    assert f"limit 1 GiB by memory.high in {root / 'g/memory.high'}" in found.text


def test_a_limit_too_small_for_staging_is_unusable_and_one_near_it_a_warning(root: Path) -> None:
    write(root / "g/memory.max", str(48 * MIB))
    found = check_memory(root)
    assert found.level is Level.FAIL
    assert "raise the limit" in found.remedy
    write(root / "g/memory.max", str(80 * MIB))
    assert check_memory(root).level is Level.WARN


def test_memory_that_the_gpu_shares_is_counted_once_f10(root: Path) -> None:
    write(root / "proc/device-tree/compatible", "nvidia,tegra234\0")
    assert "host_bytes=auto is 0" in check_memory(root).text


def test_the_memlock_limit_is_named_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 * MIB, 128 * MIB))
    monkeypatch.setattr(memory_checks, "has_capability", lambda *_: False)
    found = check_memlock()
    assert found.level is Level.WARN
    assert "8 MiB" in found.text
    assert "128 MiB" in found.text
    assert "ulimit -l" in found.remedy
    monkeypatch.setattr(memory_checks, "has_capability", lambda *_: True)
    assert check_memlock().level is Level.OK


@pytest.mark.parametrize(
    ("enabled", "shared", "level"),
    [
        ("always [madvise] never", "always within_size [advise] never deny force", Level.OK),
        ("[always] madvise never", "always within_size advise [never] deny force", Level.NOTE),
        ("always madvise [never]", "always within_size [advise] never deny force", Level.WARN),
    ],
)
def test_huge_pages_that_are_off_are_named(
    tmp_path: Path, enabled: str, shared: str, level: Level
) -> None:
    write(tmp_path / "sys/kernel/mm/transparent_hugepage/enabled", enabled)
    write(tmp_path / "sys/kernel/mm/transparent_hugepage/shmem_enabled", shared)
    found = check_huge_pages(tmp_path)
    assert found.level is level
    assert bool(found.remedy) is (level is not Level.OK)


def test_a_kernel_that_says_nothing_of_huge_pages_is_no_fault(tmp_path: Path) -> None:
    found = check_huge_pages(tmp_path)
    assert (found.level, found.text.count("unknown")) == (Level.OK, 2)


@pytest.mark.parametrize(
    ("probe", "level", "text"),
    [
        ({"nodes": "0", "text": "one node", "refusal": ""}, Level.OK, "one node"),
        (
            {"nodes": "0-1", "text": "interleave 0-1", "refusal": ""},
            Level.OK,
            "nodes 0-1 usable, numa=auto: interleave 0-1",
        ),
        (
            {"nodes": "0-1", "text": "refused: mbind: x (errno=1)", "refusal": "mbind: x"},
            Level.WARN,
            "nodes 0-1 usable, numa=auto: refused: mbind: x (errno=1)",
        ),
    ],
)
def test_numa_nodes_are_named_and_a_refused_mbind_has_a_remedy_f9(
    monkeypatch: pytest.MonkeyPatch, probe: dict[str, str], level: Level, text: str
) -> None:
    monkeypatch.setattr(memory_checks._core, "probe_numa", lambda: probe)
    found = check_numa()
    assert (found.level, found.text) == (level, text)
    assert ("CAP_SYS_NICE" in found.remedy) is (level is Level.WARN)


def test_swap_is_a_fault_only_where_the_kernel_likes_to_use_it_b9(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", "SwapTotal: 4194304 kB")
    for level, swappiness in ((Level.WARN, "60"), (Level.OK, "1")):
        write(tmp_path / "proc/sys/vm/swappiness", swappiness)
        found = check_swap(tmp_path)
        assert found.level is level
        assert f"4 GiB of swap, vm.swappiness={swappiness}" in found.text
        assert ("vm.swappiness=1" in found.remedy) is (level is Level.WARN)
    write(tmp_path / "proc/meminfo", "SwapTotal: 0 kB")
    assert check_swap(tmp_path).text == "no swap space"


@pytest.mark.parametrize(("size_bytes", "level"), [(64 * MIB, Level.NOTE), (8 * GIB, Level.OK)])
def test_small_shared_memory_of_a_container_is_named(
    monkeypatch: pytest.MonkeyPatch, size_bytes: int, level: Level
) -> None:
    status = SimpleNamespace(f_blocks=size_bytes // 4096, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: status)
    assert check_shared_memory().level is level


def test_missing_shared_memory_is_a_note(tmp_path: Path) -> None:
    assert check_shared_memory(str(tmp_path / "missing")).level is Level.NOTE
