"""What `kvtier bench disk` found: JSON, figures beside their bounds, and a verdict. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtier.bench.figure import Figure
from kvtier.bench.timed_bytes import Pairs, TimedBytes, median
from kvtier.units import MIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_DISK_TRAFFIC = "no disk traffic"
WRONG_BYTES = "wrong bytes"
GOOD = "good"
GET_RATIO_MIN = 0.95
SMALL_GET_RATIO_MIN = 0.90
PUT_RATIO_MIN = 0.90
CPU_RATIO_MAX = 1.2
# Nothing moves faster than the device: more than noise means that the probe is no roof.
_RATIO_MAX = 1.15


@dataclass(frozen=True, kw_only=True)
class DiskReport:
    """Pairs of one run and how they were made. With a disk on paper `raw` sides are calculated."""

    block_bytes: int
    num_bytes: int
    gets: Pairs
    fresh_puts: Pairs
    overwriting_puts: Pairs
    verified_reads: Pairs
    bare_gets: Pairs
    bare_puts: Pairs
    wrong_bytes: int
    depth: int
    raw_engine: str
    """"ring", "threads" or "paper"."""
    io: str
    direct: str
    medium: str

    @property
    def verdict(self) -> str:
        if self.wrong_bytes:
            return WRONG_BYTES
        if not moved_bytes_of(self.gets.store) or not moved_bytes_of(self.fresh_puts.store):
            return NO_DISK_TRAFFIC
        return GOOD

    def to_json(self) -> dict[str, object]:
        """The object that `kvtier bench disk --json` prints."""
        return {
            "get": {
                **_side(self.gets, "bytes_read"),
                "bytes_got": sum(it.num_bytes for it in self.gets.store),
                "cpu_ratio": median(self.verified_reads.cpu_ratios) or None,
                "bare_ratio": median(self.bare_gets.ratios) or None,
            },
            "put": {
                **_side(self.fresh_puts, "bytes_written"),
                "overwriting": {
                    **_side(self.overwriting_puts, "bytes_written"),
                    "bare_ratio": median(self.bare_puts.ratios) or None,
                },
            },
            "raw": {
                "read_gb_per_s": rate_of(self.gets.raw),
                "write_gb_per_s": rate_of(self.fresh_puts.raw),
                "overwrite_gb_per_s": rate_of(self.overwriting_puts.raw),
                "bare_get_gb_per_s": rate_of(self.bare_gets.raw) or None,
                "bare_put_gb_per_s": rate_of(self.bare_puts.raw) or None,
                "verified_read_cpu_s_per_gb": _cpu_of(self.verified_reads.raw),
                "bytes_read": moved_bytes_of(self.gets.raw),
                "bytes_written": moved_bytes_of(self.fresh_puts.raw)
                + moved_bytes_of(self.overwriting_puts.raw),
                "engine": self.raw_engine,
            },
            "medium": self.medium,
            "block_bytes": self.block_bytes,
            "num_bytes": self.num_bytes,
            "num_pairs": len(self.gets.store),
            "depth": self.depth,
            "io": self.io,
            "direct": self.direct,
            "wrong_bytes": self.wrong_bytes,
            "verdict": self.verdict,
        }

    def figures(self) -> list[Figure]:
        """Ratios with their bounds, each with the rates that it was made of."""
        size = format_bytes(self.block_bytes)
        get_min = GET_RATIO_MIN if self.block_bytes >= MIB else SMALL_GET_RATIO_MIN
        figures = [
            _ratio(f"disk get / raw read, {size}", self.gets, get_min),
            _ratio(f"disk put + flush / raw write, new files, {size}", self.fresh_puts,
                   PUT_RATIO_MIN),
            _ratio(f"disk put + flush / raw write, written before, {size}",
                   self.overwriting_puts, PUT_RATIO_MIN),
        ]  # fmt: skip
        beside = f"beside hash + copy in a second thread, {size}"
        for name, pairs, at_least in (
            (f"disk get / raw read {beside}", self.bare_gets, get_min),
            (f"disk put + flush / raw write {beside}", self.bare_puts, PUT_RATIO_MIN),
        ):
            if pairs.ratios:
                figures.append(_ratio(name, pairs, at_least, at_most=None))
        cpu_ratios = self.verified_reads.cpu_ratios
        if cpu_ratios:
            figures.append(
                Figure(
                    name=f"CPU of a disk get / raw read + hash + copy, {size}",
                    value=median(cpu_ratios),
                    at_most=CPU_RATIO_MAX,
                    note=f"{_cpu_of(self.gets.store):.3f} of "
                    f"{_cpu_of(self.verified_reads.raw):.3f} s per GB; {_spread(cpu_ratios)}",
                )
            )
        return figures

    def lines(self) -> list[str]:
        """What the figures were made of, for people."""
        lines = [
            f"{len(self.gets.store)} pairs of {format_bytes(self.num_bytes)} in blocks of "
            f"{format_bytes(self.block_bytes)}; io={self.io}, direct={self.direct}, "
            f"medium {self.medium}",
            f"raw: {self._raw_text}",
            f"disk read {moved_bytes_of(self.gets.store) / 1e9:.2f} GB for gets, wrote "
            f"{self._put_bytes / 1e9:.2f} GB for puts, by the store's counters",
        ]
        if self.medium == "memory":
            lines.append("The path lies in memory: these figures say nothing about a disk.")
        return lines

    @property
    def _raw_text(self) -> str:
        if self.raw_engine == "paper":
            return f"calculated for a disk on paper, not measured; depth {self.depth}"
        return (
            f"by {self.raw_engine}, depth {self.depth}: reads of the same slots, writes to files "
            "in the same state"
        )

    @property
    def _put_bytes(self) -> int:
        puts = [*self.fresh_puts.store, *self.overwriting_puts.store]
        return moved_bytes_of(puts)


def moved_bytes_of(timed: Sequence[TimedBytes]) -> int:
    return sum(it.moved_bytes for it in timed)


def rate_of(timed: Sequence[TimedBytes]) -> float:
    return median([it.gb_per_s for it in timed])


def _cpu_of(timed: Sequence[TimedBytes]) -> float:
    return median([it.cpu_s_per_gb for it in timed])


def _side(pairs: Pairs, bytes_name: str) -> dict[str, object]:
    moved_bytes = moved_bytes_of(pairs.store)
    ratios = pairs.ratios
    return {
        # A rate of bytes that came from elsewhere is none of the disk's.
        "gb_per_s": rate_of(pairs.store) if moved_bytes else None,
        "ratio": median(ratios) if moved_bytes and ratios else None,
        "ratio_min": min(ratios) if moved_bytes and ratios else None,
        "ratio_max": max(ratios) if moved_bytes and ratios else None,
        "cpu_s_per_gb": _cpu_of(pairs.store),
        bytes_name: moved_bytes,
    }


def _ratio(name: str, pairs: Pairs, at_least: float, at_most: float | None = _RATIO_MAX) -> Figure:
    return Figure(
        name=name,
        value=median(pairs.ratios),
        at_least=at_least,
        at_most=at_most,
        note=f"{rate_of(pairs.store):.2f} of {rate_of(pairs.raw):.2f} GB/s; "
        f"{_spread(pairs.ratios)}",
    )


def _spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return "no pairs"
    return f"{len(ratios)} pairs, {min(ratios):.2f} to {max(ratios):.2f}"
