"""Checks of the GPU: driver and memory, copies to and from it, its PCIe link, GPUDirect Storage.

`judge_*` are pure functions; the checks read the machine and start the driver. Stateless.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvtier import _core
from kvtier.cli.doctor.finding import PROMPT_BYTES, PROMPT_TEXT, Finding, Level
from kvtier.cli.doctor.gpu_facts import (
    PcieLink,
    find_hardware,
    is_direct_storage_loaded,
    read_gpus,
)
from kvtier.errors import UnsupportedError
from kvtier.machine import unified_gpu
from kvtier.units import MIB, format_bytes

_ROOT: Final = Path("/")
# Large enough for the link's rate, and with its four places a fraction of a second.
_COPY_BYTES: Final = 64 * MIB
_NUM_COPIES: Final = 3
# Of what the link carries: packets take a tenth, and a good copy engine little more.
_ROOF_SHARE_MIN: Final = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRates:
    """The best of some large copies in each direction."""

    load_gb_per_s: float
    save_gb_per_s: float
    is_memory_unified: bool


def check_gpu(root: Path = _ROOT) -> Finding:
    """Name, memory and driver; or that there is none, or one without its driver."""
    gpus, unified = read_gpus(root), unified_gpu(root)
    if gpus:
        first = gpus[0]
        parts = [
            f"{len(gpus)} x {first.name}" if len(gpus) > 1 else first.name,
            format_bytes(first.memory_bytes) if first.memory_bytes else "",
            f"driver {first.driver}" if first.driver else "",
            "shares the machine's memory" if unified else "memory of its own",
        ]
        return Finding(name="gpu", text=", ".join(filter(None, parts)))
    if unified:
        return Finding(name="gpu", text=f"{unified}, shares the machine's memory")
    hardware = find_hardware(root)
    if not hardware:
        return Finding(name="gpu", text="none: blocks move between host memory and disk only")
    return Finding(
        name="gpu",
        level=Level.WARN,
        text=f"NVIDIA hardware at {', '.join(hardware)}, but no driver",
        why="KV of the GPU can neither be saved nor loaded",
        remedy="install the NVIDIA driver; in a container: docker run --gpus all",
    )


def check_copies(root: Path = _ROOT) -> Iterator[Finding]:
    """Copies for less than a second, then looks at the link: an idle GPU slows it down."""
    try:
        device = _core.TransferDevice.cuda(0)
    except UnsupportedError as error:
        yield _refused(str(error), is_expected=not read_gpus(root) and unified_gpu(root) is None)
        return
    rates = measure_copies(device)
    link = next((gpu.link for gpu in read_gpus(root) if gpu.link), None)
    yield judge_copies(rates, link)
    if link is not None and not rates.is_memory_unified:
        yield judge_link(link)


def check_direct_storage(root: Path = _ROOT) -> Finding:
    """Says that GPUDirect Storage makes no difference."""
    if is_direct_storage_loaded(root):
        return Finding(
            name="gpu storage",
            text="nvidia-fs (GPUDirect Storage) is loaded; not used, the host path is used",
        )
    return Finding(
        name="gpu storage",
        text="no nvidia-fs (GPUDirect Storage); not needed, the host path is used",
    )


def measure_copies(device: _core.TransferDevice) -> CopyRates:
    """Measures bare copies with page-locked memory. Raises BenchmarkError, KvtierError."""
    from kvtier.bench.copy_rig import LOAD, SAVE, open_rig

    with open_rig(device, _COPY_BYTES) as rig:
        best_s = {
            direction: min(rig.copy_s(direction, _COPY_BYTES) for _ in range(_NUM_COPIES))
            for direction in (LOAD, SAVE)
        }
        return CopyRates(
            load_gb_per_s=_COPY_BYTES / best_s[LOAD] / 1e9,
            save_gb_per_s=_COPY_BYTES / best_s[SAVE] / 1e9,
            is_memory_unified=rig.info["is_memory_unified"],
        )


def judge_copies(rates: CopyRates, link: PcieLink | None) -> Finding:
    """Says what the rates mean, beside what the link could carry."""
    load_ms = 1e3 * PROMPT_BYTES / (rates.load_gb_per_s * 1e9)
    text = f"loads {rates.load_gb_per_s:.1f}, saves {rates.save_gb_per_s:.1f} GB/s, page-locked"
    why = f"{PROMPT_TEXT} loads in {load_ms:.0f} ms"
    roof_gb_per_s = link.gb_per_s if link and not rates.is_memory_unified else 0.0
    if min(rates.load_gb_per_s, rates.save_gb_per_s) >= _ROOF_SHARE_MIN * roof_gb_per_s:
        return Finding(name="gpu copy", text=text, why=why)
    return Finding(
        name="gpu copy",
        level=Level.WARN,
        text=text,
        why=f"the link carries {roof_gb_per_s:.1f} GB/s; {why}",
        remedy="stop what else uses the GPU and measure again; run the process on the GPU's NUMA "
        "node (numactl --cpunodebind)",
    )


def judge_link(link: PcieLink) -> Finding:
    """Says whether the link runs at what both ends can do."""
    text = f"PCIe {link.generation} x{link.width}, {link.gb_per_s:.1f} GB/s each way"
    can = f"could be PCIe {link.generation_max} x{link.width_max}"
    if link.width < link.width_max:
        share = link.width / link.width_max
        return Finding(
            name="gpu link",
            level=Level.WARN,
            text=f"{text}; {can}",
            why=f"saves and loads run at {100 * share:.0f} % of the rate",
            remedy="move the card to a slot with all lanes, seat it anew, look at the riser",
        )
    if link.generation < link.generation_max:
        return Finding(
            name="gpu link",
            level=Level.NOTE,
            text=f"{text}; {can}",
            why="an idle GPU slows its link down; under load it should not be so",
            remedy="if it stays so under load: set the slot's speed in the firmware, look at the "
            "riser",
        )
    return Finding(name="gpu link", text=text)


def _refused(reason: str, *, is_expected: bool) -> Finding:
    if is_expected:
        return Finding(name="gpu copy", text=f"not measured: {reason}")
    return Finding(
        name="gpu copy",
        level=Level.WARN,
        text=f"not measured: {reason}",
        why="KV of the GPU can neither be saved nor loaded",
        remedy="make nvidia-smi work for this user; in a container: docker run --gpus all",
    )
