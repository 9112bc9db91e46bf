"""Check of the raw rate of a folder's device, by block size, and what it means for a prompt.

Writes and reads a file without a name, so that nothing is left over however it ends.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from kvtier.cli.doctor.finding import PROMPT_BYTES, PROMPT_TEXT, Finding, Level
from kvtier.units import KIB, MIB, format_bytes

BLOCK_BYTES: Final = (64 * KIB, MIB, 4 * MIB)
# Six passes, with what opening and flushing take, are over in three seconds.
_PASS_S_MAX: Final = 0.4
_READ_GB_PER_S_MIN: Final = 1.0
# Through the page cache the deadline of a pass does not bound what is left to be flushed.
_BUFFERED_BYTES_MAX: Final = 16 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRate:
    """Rates with blocks of one size."""

    block_bytes: int
    read_gb_per_s: float
    write_gb_per_s: float


def measure_rates(folder: str, file_bytes: int) -> tuple[list[BlockRate], bool]:
    """Returns the rate with each size of blocks that fits, and whether they were direct.

    file_bytes: written at most with each size. Raises OSError.
    """
    from kvtier.bench.raw_device import raw_probe

    rates = []
    is_direct = True
    for block_bytes in BLOCK_BYTES:
        if block_bytes > file_bytes:
            break
        with raw_probe(folder, file_bytes=file_bytes, block_bytes=block_bytes) as probe:
            is_direct = is_direct and probe.is_direct
            written = probe.write(seconds_max=_PASS_S_MAX)
            read = probe.read(seconds_max=_PASS_S_MAX)
        rates.append(
            BlockRate(
                block_bytes=block_bytes,
                read_gb_per_s=read.gb_per_s,
                write_gb_per_s=written.gb_per_s,
            )
        )
    return rates, is_direct


def check_rates(folder: str, probe_bytes: int, *, can_be_direct: bool) -> Finding:
    """Measures the device for less than three seconds, with at most `probe_bytes` and a quarter of
    the free space at a time. Raises OSError.
    """
    if probe_bytes == 0:
        return Finding(name="raw rate", text="not measured, as asked")
    status = os.statvfs(folder)
    file_bytes = min(probe_bytes, status.f_bavail * status.f_frsize // 4)
    if not can_be_direct:
        file_bytes = min(file_bytes, _BUFFERED_BYTES_MAX)
    rates, is_direct = measure_rates(folder, file_bytes)
    return judge_rates(rates, is_direct=is_direct)


def judge_rates(rates: list[BlockRate], *, is_direct: bool) -> Finding:
    """Says what measured rates mean."""
    if not rates:
        return Finding(
            name="raw rate",
            level=Level.NOTE,
            text="not measured: too little space",
            remedy=f"four times {format_bytes(BLOCK_BYTES[0])} free, and --probe-bytes as large",
        )
    sizes = ", ".join(format_bytes(it.block_bytes) for it in rates)
    reads = " / ".join(f"{it.read_gb_per_s:.2f}" for it in rates)
    writes = " / ".join(f"{it.write_gb_per_s:.2f}" for it in rates)
    best_gb_per_s = max(it.read_gb_per_s for it in rates)
    load_s = PROMPT_BYTES / (best_gb_per_s * 1e9) if best_gb_per_s > 0 else float("inf")
    text = f"reads {reads}, writes {writes} GB/s with blocks of {sizes}"
    why = f"{PROMPT_TEXT} loads in {load_s:.2f} s"
    if not is_direct:
        return Finding(
            name="raw rate",
            level=Level.NOTE,
            text=f"{text}, through the page cache",
            why="this is the rate of memory, not of the device",
            remedy="use ext4 or xfs on a local disk, where direct I/O works",
        )
    if best_gb_per_s >= _READ_GB_PER_S_MIN:
        return Finding(name="raw rate", text=text, why=why)
    return Finding(
        name="raw rate",
        level=Level.WARN,
        text=text,
        why=f"{why}, which is slower than most GPUs compute it",
        remedy="use an NVMe disk; until then keep more in host memory (host_bytes)",
    )
