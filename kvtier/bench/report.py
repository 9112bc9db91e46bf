"""What a replay found, as JSON, as a table and as a verdict. Pure but for printing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtier.bench.raw_transfer import RawRate
from kvtier.bench.replay import ReplayCounts, TierCounts

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

GB = 1e9
NO_DISK_TRAFFIC = "no disk traffic"
GOOD = "good"


@dataclass(frozen=True, kw_only=True)
class RawRates:
    """Rates of the bare device in GB/s; medians of the passes of one run."""

    read_gb_per_s: float
    write_gb_per_s: float

    @classmethod
    def of(cls, reads: Sequence[RawRate], writes: Sequence[RawRate]) -> RawRates:
        return cls(
            read_gb_per_s=statistics.median(rate.gb_per_s for rate in reads),
            write_gb_per_s=statistics.median(rate.gb_per_s for rate in writes),
        )


@dataclass(frozen=True, kw_only=True)
class TraceReport:
    """A finished replay. `raw` and `medium` are None without a disk tier."""

    counts: ReplayCounts
    block_bytes: int
    raw: RawRates | None
    medium: str | None

    @property
    def verdict(self) -> str:
        if self.counts.wrong_bytes:
            return "wrong bytes"
        if self.raw is not None and self.counts.disk.bytes_read == 0:
            return NO_DISK_TRAFFIC
        return GOOD

    @property
    def hit_rate(self) -> float:
        return share(self.counts.host.hits + self.counts.disk.hits, self.counts.blocks) or 0.0

    @property
    def cpu_s_per_gb(self) -> float | None:
        """CPU seconds of the whole process but the replay's own, per GB got and put."""
        hits = self.counts.host.hits + self.counts.disk.hits
        moved_bytes = hits * self.block_bytes + self.counts.offered_bytes
        return share(self.counts.store_cpu_s, moved_bytes / GB)

    @property
    def written_per_offered(self) -> float | None:
        return share(self.counts.disk.bytes_written, self.counts.offered_bytes)

    def to_json(self) -> dict[str, object]:
        """The object that `kvtier bench trace --json` prints."""
        raw = self.raw
        return {
            "hit_rate": self.hit_rate,
            "requests": self.counts.requests,
            "blocks": self.counts.blocks,
            "wrong_bytes": self.counts.wrong_bytes,
            "cpu_s_per_gb": self.cpu_s_per_gb,
            "written_per_offered": self.written_per_offered,
            "tiers": {name: _tier_json(self.counts.tier(name)) for name in ("host", "disk")},
            "raw": {
                "read_gb_per_s": raw.read_gb_per_s if raw else None,
                "write_gb_per_s": raw.write_gb_per_s if raw else None,
            },
            "medium": self.medium,
            "verdict": self.verdict,
        }


def print_report(report: TraceReport, console: Console) -> None:
    """Prints the tiers as a table, the totals below it, and the verdict."""
    counts = report.counts
    console.print(tier_table(report))
    medium = f" ({report.medium})" if report.medium else ""
    lines = [
        f"{counts.requests:,} requests, {counts.blocks:,} blocks of {report.block_bytes:,} bytes: "
        f"{report.hit_rate:.1%} delivered, {counts.wrong_bytes:,} wrong bytes",
        f"CPU {_number(report.cpu_s_per_gb, '.3f')} s per GB got or put (whole process, less what "
        f"making and checking payloads took: {counts.own_cpu_s:.1f} s)",
        f"written to disk per byte offered: {_number(report.written_per_offered, '.3f')}",
        f"waited {counts.waited_s:.1f} of {counts.wall_s:.1f} s for room in the disk's backlog",
    ]
    if report.raw is not None:
        lines.append(
            f"bare device{medium}: reads {report.raw.read_gb_per_s:.2f} GB/s, "
            f"writes {report.raw.write_gb_per_s:.2f} GB/s"
        )
    if report.medium == "memory":
        lines.append("The path lies in memory: these figures say nothing about a disk.")
    if report.verdict == NO_DISK_TRAFFIC:
        lines.append(
            "no disk traffic: nothing was read from the disk tier, so nothing was measured there. "
            "Give the host tier less room, or replay more requests."
        )
    elif counts.wrong_bytes:
        lines.append(f"WRONG BYTES: {counts.wrong_bytes:,} in {counts.wrong_blocks:,} blocks")
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def tier_table(report: TraceReport) -> Table:
    """One row per tier, the bare device's rate beside the disk's."""
    from rich.table import Table

    table = Table(title=None)
    for heading in ("tier", "hit rate", "GB/s", "bare device", "p50", "p99", "read", "written"):
        table.add_column(heading, justify="left" if heading == "tier" else "right")
    for name in ("host", "disk"):
        tier = report.counts.tier(name)
        values = _tier_json(tier)
        is_raw_shown = name == "disk" and report.raw is not None
        table.add_row(
            name,
            f"{share(tier.hits, report.counts.blocks) or 0.0:.1%}",
            _number(values["gb_per_s"], ".2f"),
            f"{report.raw.read_gb_per_s:.2f}" if is_raw_shown and report.raw else "",
            format_us(values["p50_us"]),
            format_us(values["p99_us"]),
            f"{tier.bytes_read / GB:.2f} GB",
            f"{tier.bytes_written / GB:.2f} GB",
        )
    return table


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The nearest value at or above that share of them; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    rank = max(1, -(-int(percent * len(ordered)) // 100))
    return ordered[min(rank, len(ordered)) - 1]


def share(part: float, whole: float) -> float | None:
    """A quotient, or None where there is nothing to divide by."""
    return part / whole if whole else None


def format_us(value: float | None) -> str:
    """A latency in the unit that suits it."""
    if value is None:
        return "-"
    return f"{value / 1000:.1f} ms" if value >= 1000 else f"{value:.0f} µs"


def tier_gb_per_s(tier: TierCounts) -> float | None:
    return share(tier.got_bytes / GB, tier.got_s) if tier.got_bytes else None


def _tier_json(tier: TierCounts) -> dict[str, float | None]:
    return {
        "hits": tier.hits,
        "gb_per_s": tier_gb_per_s(tier),
        "p50_us": percentile(tier.latencies_us, 50),
        "p99_us": percentile(tier.latencies_us, 99),
        "bytes_read": tier.bytes_read,
        "bytes_written": tier.bytes_written,
    }


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
