"""GPUs and their links, from invented files of the driver and from a double of NVML."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvtier.cli.doctor.gpu_facts import (
    GpuFacts,
    PcieLink,
    find_hardware,
    is_direct_storage_loaded,
    read_gpus,
)
from kvtier.units import GIB

ADDRESS = "0000:01:00.0"
VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (root)"
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a GPU and its driver, and without NVML."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    write(tmp_path / "proc/driver/nvidia/version", VERSION)
    write(
        tmp_path / f"proc/driver/nvidia/gpus/{ADDRESS}/information",
        f"Model: \t\t NVIDIA RTX A5000\nIRQ:   \t\t 123\nBus Location: \t {ADDRESS}",
    )
    device = tmp_path / "sys/bus/pci/devices" / ADDRESS
    for name, text in (
        ("vendor", "0x10de"),
        ("class", "0x030200"),
        ("current_link_speed", "8.0 GT/s PCIe"),
        ("max_link_speed", "16.0 GT/s PCIe"),
        ("current_link_width", "8"),
        ("max_link_width", "16"),
    ):
        write(device / name, text)
    return tmp_path


def test_the_drivers_files_tell_name_version_and_link(root: Path) -> None:
    link = PcieLink(generation=3, width=8, generation_max=4, width_max=16)
    assert read_gpus(root) == [
        GpuFacts(name="NVIDIA RTX A5000", driver="570.86.15", memory_bytes=0, link=link)
    ]
    assert link.gb_per_s == pytest.approx(7.88)
    assert link.gb_per_s_max == pytest.approx(31.5, rel=0.01)


@pytest.mark.parametrize("text", ["", "Unknown", "255", "0"])
def test_a_link_that_is_not_told_is_not_claimed(root: Path, text: str) -> None:
    write(root / "sys/bus/pci/devices" / ADDRESS / "current_link_width", text)
    assert read_gpus(root)[0].link is None


def test_without_a_driver_there_is_no_gpu_but_its_hardware_is_seen(
    tmp_path: Path, root: Path
) -> None:
    (root / "proc/driver/nvidia/version").unlink()
    (root / f"proc/driver/nvidia/gpus/{ADDRESS}/information").unlink()
    assert read_gpus(root) == []
    assert find_hardware(root) == [ADDRESS]
    # The sound device of the same card is no GPU.
    write(root / "sys/bus/pci/devices" / ADDRESS / "class", "0x040300")
    assert find_hardware(root) == []
    assert find_hardware(tmp_path / "missing") == []


class NvmlError(Exception):
    """As pynvml.NVMLError."""


def make_nvml(*, has_memory: bool = True, has_link: bool = True) -> SimpleNamespace:
    def refuse(*_: object) -> int:
        raise NvmlError("Not Supported")

    def link_part(number: int) -> object:
        return (lambda _: number) if has_link else refuse

    memory = SimpleNamespace(total=24 * GIB)
    return SimpleNamespace(
        NVMLError=NvmlError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: b"580.1.2",
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda _: "NVIDIA H200",
        nvmlDeviceGetMemoryInfo=(lambda _: memory) if has_memory else refuse,
        nvmlDeviceGetCurrPcieLinkGeneration=link_part(5),
        nvmlDeviceGetCurrPcieLinkWidth=link_part(16),
        nvmlDeviceGetMaxPcieLinkGeneration=link_part(5),
        nvmlDeviceGetMaxPcieLinkWidth=link_part(16),
    )


def test_nvml_goes_before_the_drivers_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", make_nvml())
    link = PcieLink(generation=5, width=16, generation_max=5, width_max=16)
    gpu = GpuFacts(name="NVIDIA H200", driver="580.1.2", memory_bytes=24 * GIB, link=link)
    assert read_gpus(root) == [gpu, gpu]


def test_what_nvml_does_not_tell_of_a_gpu_is_left_out(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", make_nvml(has_memory=False, has_link=False))
    first = read_gpus(root)[0]
    assert (first.name, first.memory_bytes, first.link) == ("NVIDIA H200", 0, None)


def test_nvml_that_does_not_start_leaves_it_to_the_files(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = make_nvml()

    def refuse() -> None:
        raise NvmlError("Driver Not Loaded")

    nvml.nvmlInit = refuse
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert [gpu.name for gpu in read_gpus(root)] == ["NVIDIA RTX A5000"]


def test_the_module_of_direct_storage_is_seen(tmp_path: Path) -> None:
    assert not is_direct_storage_loaded(tmp_path)
    write(tmp_path / "proc/modules", "nvidia 1 2 nvidia_fs, Live 0x0\nnvme 1 2 - Live 0x0")
    assert not is_direct_storage_loaded(tmp_path)
    write(tmp_path / "proc/modules", "nvidia_fs 262144 0 - Live 0x0")
    assert is_direct_storage_loaded(tmp_path)
