"""GPUs and their PCIe links: by NVML where its Python package is installed, else by /proc and /sys.

Reads the machine at each call; stateless.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvtier.cli.doctor.kernel_files import read_text

if TYPE_CHECKING:
    from types import ModuleType

_ROOT: Final = Path("/")
_VERSION: Final = re.compile(r"\b(\d{3}\.\d+(?:\.\d+)?)\b")
_GENERATIONS: Final = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
# Of one lane in one direction, after the line code.
_LANE_GB_PER_S: Final = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
_NVIDIA_VENDOR: Final = "0x10de"
_DISPLAY_CLASS: Final = "0x03"


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLink:
    """What a link runs at now, and what both of its ends can do; 0 where it is not known."""

    generation: int
    width: int
    generation_max: int
    width_max: int

    @property
    def gb_per_s(self) -> float:
        """Returns what the link carries in one direction at most, 0 where it is not known."""
        return _LANE_GB_PER_S.get(self.generation, 0.0) * self.width

    @property
    def gb_per_s_max(self) -> float:
        return _LANE_GB_PER_S.get(self.generation_max, 0.0) * self.width_max


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU, as the driver names it."""

    name: str
    driver: str
    """Version; "" where it is not known."""
    memory_bytes: int
    """0 where it is not known, as for memory shared with the machine."""
    link: PcieLink | None


def read_gpus(root: Path = _ROOT) -> list[GpuFacts]:
    """Returns the GPUs that the driver knows; none without a driver."""
    return _read_nvml() or list(_read_driver_files(root))


def find_hardware(root: Path = _ROOT) -> list[str]:
    """Returns the PCI addresses of NVIDIA GPUs, whether or not there is a driver."""
    devices = root / "sys/bus/pci/devices"
    names = sorted(it.name for it in devices.iterdir()) if devices.is_dir() else []
    return [
        name
        for name in names
        if read_text(devices / name / "vendor") == _NVIDIA_VENDOR
        and read_text(devices / name / "class").startswith(_DISPLAY_CLASS)
    ]


def is_direct_storage_loaded(root: Path = _ROOT) -> bool:
    """Returns whether the kernel has the module of GPUDirect Storage."""
    lines = read_text(root / "proc/modules").splitlines()
    return any(line.split(" ", 1)[0] == "nvidia_fs" for line in lines)


def _read_nvml() -> list[GpuFacts]:
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        count = pynvml.nvmlDeviceGetCount()
        return [_ask_nvml(pynvml, index, driver) for index in range(count)]
    except pynvml.NVMLError:
        # The files of the driver may still tell.
        return []
    finally:
        pynvml.nvmlShutdown()


def _ask_nvml(nvml: ModuleType, index: int, driver: str) -> GpuFacts:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    try:
        memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:
        memory_bytes = 0
    try:
        link = PcieLink(
            generation=nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            width=nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
            generation_max=nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
            width_max=nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
        )
    except nvml.NVMLError:
        link = None
    name = _text(nvml.nvmlDeviceGetName(handle))
    return GpuFacts(name=name, driver=driver, memory_bytes=memory_bytes, link=link)


def _read_driver_files(root: Path) -> Iterator[GpuFacts]:
    folder = root / "proc/driver/nvidia"
    version = _VERSION.search(read_text(folder / "version"))
    for file in sorted((folder / "gpus").glob("*/information")):
        fields = {}
        for line in read_text(file).splitlines():
            label, _, text = line.partition(":")
            fields[label.strip()] = text.strip()
        address = fields.get("Bus Location", file.parent.name).lower()
        yield GpuFacts(
            name=fields.get("Model", "unknown NVIDIA GPU"),
            driver=version[1] if version else "",
            memory_bytes=0,
            link=_read_link(root / "sys/bus/pci/devices" / address),
        )


def _read_link(device: Path) -> PcieLink | None:
    link = PcieLink(
        generation=_read_generation(device / "current_link_speed"),
        width=_read_width(device / "current_link_width"),
        generation_max=_read_generation(device / "max_link_speed"),
        width_max=_read_width(device / "max_link_width"),
    )
    return link if link.generation and link.width else None


def _read_generation(file: Path) -> int:
    """Of text such as "16.0 GT/s PCIe"."""
    return _GENERATIONS.get(read_text(file).partition(" ")[0], 0)


def _read_width(file: Path) -> int:
    text = read_text(file)
    # A link that is down, or of a virtual machine, says 0 or 255.
    return int(text) if text.isdecimal() and 0 < int(text) <= 32 else 0


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
