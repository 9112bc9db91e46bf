"""What the doctor says of GPUs, copies and links, without any of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtier import _core
from kvtier.cli.doctor import gpu_checks
from kvtier.cli.doctor.finding import Level
from kvtier.cli.doctor.gpu_checks import (
    CopyRates,
    check_copies,
    check_direct_storage,
    check_gpu,
    judge_copies,
    judge_link,
    measure_copies,
)
from kvtier.cli.doctor.gpu_facts import GpuFacts, PcieLink
from kvtier.errors import UnsupportedError
from kvtier.units import GIB, MIB

FULL = PcieLink(generation=4, width=16, generation_max=4, width_max=16)
GPU = GpuFacts(name="NVIDIA L4", driver="570.1", memory_bytes=24 * GIB, link=FULL)


def rates(load_gb_per_s: float, save_gb_per_s: float, *, is_unified: bool = False) -> CopyRates:
    return CopyRates(
        load_gb_per_s=load_gb_per_s,
        save_gb_per_s=save_gb_per_s,
        is_memory_unified=is_unified,
    )


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDevice:
        @staticmethod
        def cuda(_: int) -> None:
            raise UnsupportedError("cannot use CUDA: no driver")

    monkeypatch.setattr(_core, "TransferDevice", NoDevice)


def test_a_gpu_is_named_with_memory_and_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_checks, "read_gpus", lambda _: [GPU, GPU])
    found = check_gpu(tmp_path)
    assert found.text == "2 x NVIDIA L4, 24 GiB, driver 570.1, memory of its own"
    assert found.level is Level.OK


def test_hardware_without_a_driver_is_a_fault_and_a_box_without_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_checks, "read_gpus", lambda _: [])
    assert check_gpu(tmp_path).level is Level.OK
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030000\n")
    found = check_gpu(tmp_path)
    assert found.level is Level.WARN
    assert "0000:01:00.0" in found.text
    assert "--gpus all" in found.remedy


def test_a_board_that_shares_its_memory_is_named_f10(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_checks, "read_gpus", lambda _: [])
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/compatible").write_text("nvidia,tegra234\0")
    assert "shares the machine's memory" in check_gpu(tmp_path).text


@pytest.mark.usefixtures("no_device")
def test_copies_are_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for gpus, level in (([], Level.OK), ([GPU], Level.WARN)):
        monkeypatch.setattr(gpu_checks, "read_gpus", lambda _, found=gpus: found)
        (found,) = check_copies(tmp_path)
        assert found.level is level
        assert "not measured: cannot use CUDA: no driver" in found.text


def test_copies_are_measured_and_then_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The host plays the device: its rate has no link.
    host = _core.TransferDevice.host()

    class HostAsGpu:
        @staticmethod
        def cuda(_: int) -> _core.TransferDevice:
            return host

    order: list[str] = []

    def read_gpus(_: Path) -> list[GpuFacts]:
        order.append("link")
        return [GPU]

    def measure(device: _core.TransferDevice) -> CopyRates:
        assert device is host
        order.append("copy")
        return rates(25.0, 24.0)

    monkeypatch.setattr(_core, "TransferDevice", HostAsGpu)
    monkeypatch.setattr(gpu_checks, "read_gpus", read_gpus)
    monkeypatch.setattr(gpu_checks, "measure_copies", measure)
    assert [it.name for it in check_copies(tmp_path)] == ["gpu copy", "gpu link"]
    assert order == ["copy", "link"]


def test_the_rig_measures_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "_COPY_BYTES", MIB)
    measured = measure_copies(_core.TransferDevice.host())
    assert measured.load_gb_per_s > 0
    assert measured.save_gb_per_s > 0


def test_a_rate_means_milliseconds_for_a_prompt() -> None:
    found = judge_copies(rates(23.5, 25.0), FULL)
    assert found.level is Level.OK
    assert found.why == "a 4,096-token prompt of Qwen2.5-7B (235 MB) loads in 10 ms"


def test_copies_far_below_the_link_are_named_unless_there_is_no_link() -> None:
    found = judge_copies(rates(25.0, 9.0), FULL)
    assert found.level is Level.WARN
    assert "the link carries 31.5 GB/s" in found.why
    assert judge_copies(rates(25.0, 9.0), None).level is Level.OK
    assert judge_copies(rates(25.0, 9.0, is_unified=True), FULL).level is Level.OK


@pytest.mark.parametrize(
    ("link", "level", "words"),
    [
        (FULL, Level.OK, "PCIe 4 x16, 31.5 GB/s each way"),
        (
            PcieLink(generation=1, width=16, generation_max=4, width_max=16),
            Level.NOTE,
            "could be PCIe 4 x16",
        ),
        (
            PcieLink(generation=4, width=4, generation_max=4, width_max=16),
            Level.WARN,
            "25 % of the rate",
        ),
    ],
)
def test_missing_lanes_are_a_fault_and_a_slow_clock_when_idle_is_not(
    link: PcieLink, level: Level, words: str
) -> None:
    found = judge_link(link)
    assert found.level is level
    assert words in f"{found.text} {found.why}"


def test_direct_storage_is_said_not_to_matter_e11(tmp_path: Path) -> None:
    for text, is_loaded in (("nvme 1", False), ("nvidia_fs 1", True)):
        (tmp_path / "proc").mkdir(exist_ok=True)
        (tmp_path / "proc/modules").write_text(text + "\n")
        found = check_direct_storage(tmp_path)
        assert found.level is Level.OK
        assert "the host path is used" in found.text
        assert ("is loaded; not used" in found.text) is is_loaded
