"""What moving bytes took, of the store and of the bare device, in pairs. Pure, but for clocks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvtier.bench.raw_transfer import RawRate

_GB = 1e9


@dataclass(frozen=True, kw_only=True)
class TimedBytes:
    """Bytes and what moving them took: wall time to completion, CPU of all threads."""

    num_bytes: int
    seconds: float
    cpu_s: float = 0.0
    moved_bytes: int = 0
    """By the store's own counters of its disk tier, padding and tables included."""

    @property
    def gb_per_s(self) -> float:
        return self.num_bytes / self.seconds / _GB if self.seconds > 0 else 0.0

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cpu_s / (self.num_bytes / _GB) if self.num_bytes else 0.0


@dataclass(kw_only=True)
class Pairs:
    """Measurements of the store and of the bare device, one of each a pair."""

    store: list[TimedBytes] = field(default_factory=list)
    raw: list[TimedBytes] = field(default_factory=list)

    def add(self, store: TimedBytes, raw: TimedBytes) -> None:
        self.store.append(store)
        self.raw.append(raw)

    @property
    def ratios(self) -> list[float]:
        return ratios_of([it.gb_per_s for it in self.store], [it.gb_per_s for it in self.raw])

    @property
    def cpu_ratios(self) -> list[float]:
        return ratios_of(
            [it.cpu_s_per_gb for it in self.store], [it.cpu_s_per_gb for it in self.raw]
        )


def ratios_of(values: Sequence[float], references: Sequence[float]) -> list[float]:
    """Pair by pair; pairs without a reference are left out."""
    return [value / by for value, by in zip(values, references, strict=True) if by > 0]


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def timed(run: Callable[[], RawRate]) -> TimedBytes:
    """Runs it; the CPU time is that of all threads."""
    cpu_started_s = time.process_time()
    rate = run()
    return TimedBytes(
        num_bytes=rate.num_bytes,
        seconds=rate.seconds,
        cpu_s=time.process_time() - cpu_started_s,
        moved_bytes=rate.num_bytes,
    )
