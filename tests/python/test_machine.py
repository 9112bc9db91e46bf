"""Memory and CPU limits from invented /proc and control-group trees."""

from pathlib import Path

import pytest

from kvtier import machine
from kvtier.machine import MemoryLimit, memory_limit, num_cpus, unified_gpu
from kvtier.units import GIB, MIB

V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


class FakeMachine:
    """A root folder with /proc and control groups."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.proc = root / "proc"
        self.write(
            "proc/meminfo", f"MemTotal: {16 * GIB >> 10} kB\nMemAvailable: {8 * GIB >> 10} kB"
        )

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
        return path

    def memory_limit(self) -> MemoryLimit:
        return memory_limit(self.proc, self.root)

    def num_cpus(self) -> int:
        return num_cpus(self.proc, self.root)


@pytest.fixture
def fake(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


@pytest.fixture
def v2(fake: FakeMachine) -> FakeMachine:
    fake.write("proc/self/mountinfo", V2_MOUNT)
    fake.write("proc/self/cgroup", "0::/user/job")
    return fake


def test_without_groups_what_is_available_counts(fake: FakeMachine) -> None:
    limit = fake.memory_limit()
    assert (limit.limit_bytes, limit.kind) == (8 * GIB, "MemAvailable")
    assert limit.path.endswith("proc/meminfo")


def test_an_old_kernel_without_available_gives_the_total(fake: FakeMachine) -> None:
    fake.write("proc/meminfo", f"MemTotal: {GIB >> 10} kB")
    assert fake.memory_limit().kind == "MemTotal"


def test_a_container_limit_below_the_machine_is_seen_f11(v2: FakeMachine) -> None:
    path = v2.write("sys/fs/cgroup/user/job/memory.max", str(256 * MIB))
    assert v2.memory_limit() == MemoryLimit(
        limit_bytes=256 * MIB, path=str(path), kind="memory.max"
    )


def test_the_high_mark_counts_too_f11(v2: FakeMachine) -> None:
    v2.write("sys/fs/cgroup/user/job/memory.max", str(512 * MIB))
    v2.write("sys/fs/cgroup/user/job/memory.high", str(256 * MIB))
    assert v2.memory_limit().kind == "memory.high"


def test_the_least_limit_of_all_ancestors_counts(v2: FakeMachine) -> None:
    v2.write("sys/fs/cgroup/user/job/memory.max", "max")
    path = v2.write("sys/fs/cgroup/user/memory.max", str(GIB))
    assert v2.memory_limit().path == str(path)


def test_a_limit_above_what_is_available_does_not_count(v2: FakeMachine) -> None:
    v2.write("sys/fs/cgroup/user/job/memory.max", str(12 * GIB))
    assert v2.memory_limit().kind == "MemAvailable"


def test_a_group_path_outside_of_the_mount_leads_to_its_top(fake: FakeMachine) -> None:
    # A container whose groups are bind-mounted: its own group is the top of what it sees.
    fake.write(
        "proc/self/mountinfo", "31 23 0:28 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw"
    )
    path = fake.write("sys/fs/cgroup/memory.max", str(GIB))
    for group in ("/docker/abc", "/../../elsewhere", "/docker/other"):
        fake.write("proc/self/cgroup", f"0::{group}")
        assert fake.memory_limit().path == str(path)


def test_a_v1_limit_is_seen_and_its_no_limit_is_not(fake: FakeMachine) -> None:
    fake.write(
        "proc/self/mountinfo",
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct",
    )
    fake.write("proc/self/cgroup", "4:memory:/job\n1:cpu,cpuacct:/job\n0::/")
    fake.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    assert fake.memory_limit().kind == "MemAvailable"
    path = fake.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", str(GIB))
    assert fake.memory_limit() == MemoryLimit(
        limit_bytes=GIB, path=str(path), kind="memory.limit_in_bytes"
    )


def test_a_mount_point_with_a_space_is_found(fake: FakeMachine) -> None:
    fake.write("proc/self/mountinfo", V2_MOUNT.replace("/sys/fs/cgroup", "/my\\040groups"))
    fake.write("proc/self/cgroup", "0::/")
    fake.write("my groups/memory.max", str(GIB))
    assert fake.memory_limit().limit_bytes == GIB


@pytest.mark.parametrize("text", ["", "\0\0", "31 23", "a b c d e - cgroup2", "0::", "::::", "-"])
def test_damaged_kernel_files_are_passed_over(fake: FakeMachine, text: str) -> None:
    fake.write("proc/self/mountinfo", text)
    fake.write("proc/self/cgroup", text)
    assert fake.memory_limit().kind == "MemAvailable"
    fake.write("proc/meminfo", text)
    assert fake.memory_limit().kind == "assumed"


def test_a_cpu_quota_caps_the_affinity(v2: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert v2.num_cpus() == 64
    v2.write("sys/fs/cgroup/user/cpu.max", "max 100000")
    assert v2.num_cpus() == 64
    v2.write("sys/fs/cgroup/user/job/cpu.max", "250000 100000")
    assert v2.num_cpus() == 3
    v2.write("sys/fs/cgroup/user/job/cpu.max", "1000 100000")
    assert v2.num_cpus() == 1


def test_a_v1_cpu_quota_counts(fake: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    fake.write("proc/self/mountinfo", "32 31 0:29 / /cpu rw - cgroup cgroup rw,cpu,cpuacct")
    fake.write("proc/self/cgroup", "1:cpu,cpuacct:/job")
    fake.write("cpu/job/cpu.cfs_quota_us", "-1")
    fake.write("cpu/job/cpu.cfs_period_us", "100000")
    assert fake.num_cpus() == 64
    fake.write("cpu/job/cpu.cfs_quota_us", "200000")
    assert fake.num_cpus() == 2


def test_this_machine_answers() -> None:
    assert memory_limit().limit_bytes > 0
    assert num_cpus() >= 1


def test_a_capability_is_a_bit_of_the_effective_set(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text("CapPrm:\t0000000000000000\nCapEff:\t0000000000004001\n")
    assert machine.has_capability(14, tmp_path)
    assert not machine.has_capability(13, tmp_path)
    assert not machine.has_capability(14, tmp_path / "missing")


def test_gpus_that_use_the_machines_memory_are_known_by_name_f10(fake: FakeMachine) -> None:
    assert unified_gpu(fake.root) is None
    gpu = "proc/driver/nvidia/gpus/000f:01:00.0/information"
    fake.write(gpu, "Model: \t\t NVIDIA H200\nIRQ:   \t\t 123")
    assert unified_gpu(fake.root) is None
    fake.write(gpu, "Model: \t\t NVIDIA GB10\nIRQ:   \t\t 123")
    assert unified_gpu(fake.root) == "NVIDIA GB10"
    fake.write("proc/device-tree/compatible", "nvidia,p3768-0000\0nvidia,tegra234\0")
    assert unified_gpu(fake.root) == "nvidia,tegra234"
