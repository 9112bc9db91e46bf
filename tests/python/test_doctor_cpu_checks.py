"""What the doctor says of CPUs, governor, interrupts, io_uring and open files, elsewhere."""

from __future__ import annotations

import errno
import resource
import sys
from pathlib import Path

import pytest

from kvtier import machine
from kvtier.cli.doctor import cpu_checks
from kvtier.cli.doctor.cpu_checks import (
    check_cpus,
    check_governor,
    check_irqbalance,
    check_open_files,
    check_uring,
)
from kvtier.cli.doctor.finding import Level


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS, errno.ENOMEM])
def test_a_refused_ring_is_named_with_errno_and_remedy(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    liburing = pytest.importorskip("kvtier.liburing")
    from kvtier.liburing.ring_errors import ring_error

    def refuse() -> None:
        raise ring_error(-code, "cannot set up io_uring")

    monkeypatch.setattr(liburing, "probe_opcodes", refuse)
    found = check_uring()
    assert found.level is Level.WARN
    assert f"errno {code}" in found.text
    assert "threads are used instead" in found.why
    assert found.remedy


def test_a_kernel_without_fixed_reads_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    liburing = pytest.importorskip("kvtier.liburing")
    probe = liburing.OpcodeProbe(opcodes=frozenset({"nop", "read"}), features=frozenset())
    monkeypatch.setattr(liburing, "probe_opcodes", lambda: probe)
    found = check_uring()
    assert found.level is Level.WARN
    assert "lacks fsync, read_fixed, write, write_fixed" in found.text


def test_a_build_without_the_bindings_says_nothing_against_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [it for it in sys.modules if it.startswith("kvtier.liburing")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kvtier.liburing._ring", None)
    found = check_uring()
    assert found.level is Level.NOTE
    assert "not built" in found.text
    assert found.remedy


def test_one_cpu_is_too_few_and_a_quota_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(cpu_checks.os, "cpu_count", lambda: 8)
    assert check_cpus(tmp_path).text.startswith("8 usable;")
    write(tmp_path / "proc/self/mountinfo", "31 23 0:28 / /g rw - cgroup2 cgroup2 rw")
    write(tmp_path / "proc/self/cgroup", "0::/")
    write(tmp_path / "g/cpu.max", "250000 100000")
    assert check_cpus(tmp_path).text.startswith("3 usable of 8 (")
    assert check_cpus(tmp_path).is_good
    write(tmp_path / "g/cpu.max", "50000 100000")
    found = check_cpus(tmp_path)
    assert found.level is Level.WARN
    assert "--cpus 2" in found.remedy


@pytest.mark.parametrize(
    ("governors", "driver", "level"),
    [
        (["performance", "performance"], "acpi-cpufreq", Level.OK),
        (["schedutil", "schedutil"], "acpi-cpufreq", Level.NOTE),
        (["performance", "powersave"], "acpi-cpufreq", Level.WARN),
        (["powersave", "powersave"], "intel_pstate", Level.NOTE),
        (["powersave", "powersave"], "amd-pstate-epp", Level.NOTE),
        ([], "", Level.OK),
    ],
)
def test_a_governor_that_keeps_the_clock_low_is_named(
    tmp_path: Path, governors: list[str], driver: str, level: Level
) -> None:
    for cpu, governor in enumerate(governors):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        write(folder / "scaling_governor", governor)
        write(folder / "scaling_driver", driver)
    found = check_governor({0, 1}, tmp_path)
    assert found.level is level
    assert bool(found.remedy) is (level is not Level.OK)


def test_the_governor_of_a_cpu_that_is_not_ours_does_not_count(tmp_path: Path) -> None:
    write(tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance")
    write(tmp_path / "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave")
    assert check_governor({0}, tmp_path).level is Level.OK


def test_irqbalance_is_seen_among_the_processes(tmp_path: Path) -> None:
    write(tmp_path / "proc/1/comm", "systemd")
    write(tmp_path / "proc/irqbalance/comm", "irqbalance")
    assert check_irqbalance(4, tmp_path).level is Level.NOTE
    assert check_irqbalance(1, tmp_path).level is Level.OK
    write(tmp_path / "proc/812/comm", "irqbalance")
    assert check_irqbalance(4, tmp_path).text == "runs"
    assert check_irqbalance(4, tmp_path / "missing").level is Level.NOTE


def test_a_small_limit_of_open_files_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    found = check_open_files()
    assert found.level is Level.NOTE
    assert "at most 256 (may be raised to 4096)" in found.text
    assert "ulimit -n" in found.remedy
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    assert check_open_files().level is Level.OK
