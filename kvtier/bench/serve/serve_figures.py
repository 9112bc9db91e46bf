"""Figures of one run, and their medians over runs. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvtier.bench.report import GB, percentile
from kvtier.bench.serve.engine_metrics import TIERS, EngineCounters
from kvtier.bench.serve.workload_run import AskedTurn, WorkloadRecord

Figures = Mapping[str, float | None]
"""By the names of FIGURES; None where there is nothing to measure it by."""


@dataclass(frozen=True, kw_only=True)
class FigureKind:
    """How one figure is named and shown."""

    name: str
    heading: str
    form: Callable[[float], str]


def _milliseconds(value: float) -> str:
    return f"{value * 1e3:,.0f} ms" if value >= 0.1 else f"{value * 1e3:,.1f} ms"


def _share(value: float) -> str:
    return f"{value:.1%}"


def _gigabytes(value: float) -> str:
    return f"{value:,.2f} GB"


def _count(value: float) -> str:
    return f"{value:,.0f}"


FIGURES = (
    FigureKind(name="ttft_mean_s", heading="first token, mean", form=_milliseconds),
    FigureKind(name="ttft_p99_s", heading="first token, P99", form=_milliseconds),
    FigureKind(name="ttft_cold_s", heading="  of first visits, mean", form=_milliseconds),
    FigureKind(name="ttft_warm_s", heading="  of later visits, mean", form=_milliseconds),
    FigureKind(name="tpot_mean_s", heading="time per output token, mean", form=_milliseconds),
    FigureKind(name="tpot_p99_s", heading="time per output token, P99", form=_milliseconds),
    FigureKind(name="tokens_per_s", heading="output tokens/s", form=lambda value: f"{value:,.1f}"),
    FigureKind(name="completion_p99_s", heading="whole answer, P99", form=_milliseconds),
    FigureKind(name="preemptions", heading="preemptions", form=_count),
    FigureKind(name="hit_rate_device", heading="prompt tokens from device", form=_share),
    FigureKind(name="hit_rate_host", heading="prompt tokens from host", form=_share),
    FigureKind(name="hit_rate_disk", heading="prompt tokens from disk", form=_share),
    FigureKind(name="hit_rate_external", heading="from any connector", form=_share),
    FigureKind(name="loaded_gb", heading="loaded to device", form=_gigabytes),
    FigureKind(name="saved_gb", heading="saved from device", form=_gigabytes),
    FigureKind(name="host_read_gb", heading="read from host tier", form=_gigabytes),
    FigureKind(name="host_written_gb", heading="written to host tier", form=_gigabytes),
    FigureKind(name="disk_read_gb", heading="read from disk tier", form=_gigabytes),
    FigureKind(name="disk_written_gb", heading="written to disk tier", form=_gigabytes),
    FigureKind(name="memory_gb", heading="memory of the server", form=_gigabytes),
    FigureKind(name="timeouts", heading="timed out", form=_count),
)


def run_figures(
    record: WorkloadRecord, counted: EngineCounters | None, memory_bytes: int | None
) -> Figures:
    """Returns the figures of a run. `counted`: what the engine counted in it."""
    return {
        **_time_figures(record),
        **_engine_figures(counted),
        "memory_gb": None if memory_bytes is None else memory_bytes / GB,
        "timeouts": float(record.num_timeouts),
    }


def median_figures(runs: Sequence[Figures]) -> Figures:
    """Returns the median of each figure over the runs that have it."""
    medians: dict[str, float | None] = {}
    for kind in FIGURES:
        values = [run[kind.name] for run in runs]
        present = [value for value in values if value is not None]
        medians[kind.name] = statistics.median(present) if present else None
    return medians


def _time_figures(record: WorkloadRecord) -> dict[str, float | None]:
    asked = [it for it in record.asked.values() if it.answer.failure is None or _has_waited(it)]
    first = [_ttft_s(it) for it in asked]
    per_token = [it.answer.tpot_s for it in asked if it.answer.tpot_s is not None]
    whole = [it.answer.duration_s for it in asked]
    num_tokens = sum(it.answer.num_tokens for it in asked)
    return {
        "ttft_mean_s": _mean(first),
        "ttft_p99_s": percentile(first, 99),
        "ttft_cold_s": _mean([_ttft_s(it) for it in asked if not it.turn.is_revisit]),
        "ttft_warm_s": _mean([_ttft_s(it) for it in asked if it.turn.is_revisit]),
        "tpot_mean_s": _mean(per_token),
        "tpot_p99_s": percentile(per_token, 99),
        "tokens_per_s": num_tokens / record.seconds if num_tokens and record.seconds else None,
        "completion_p99_s": percentile(whole, 99),
    }


def _has_waited(asked: AskedTurn) -> bool:
    """What timed out counts as long as it was waited for: leaving it out would flatter."""
    return asked.answer.is_timeout


def _ttft_s(asked: AskedTurn) -> float:
    answer = asked.answer
    return answer.duration_s if answer.ttft_s is None else answer.ttft_s


def _engine_figures(counted: EngineCounters | None) -> dict[str, float | None]:
    if counted is None:
        names = ("preemptions", "loaded_gb", "saved_gb", "hit_rate_external")
        missing = [*names, *(f"hit_rate_{place}" for place in ("device", *TIERS))]
        missing += [f"{tier}_{way}_gb" for tier in TIERS for way in ("read", "written")]
        return dict.fromkeys(missing)
    is_native = not counted.tiers and counted.loaded_bytes + counted.saved_bytes > 0
    figures: dict[str, float | None] = {
        "preemptions": counted.preemptions,
        "loaded_gb": counted.loaded_bytes / GB if is_native else None,
        "saved_gb": counted.saved_bytes / GB if is_native else None,
    }
    for place in ("device", *TIERS, "external"):
        figures[f"hit_rate_{place}"] = counted.hit_rate(place)
    for tier in TIERS:
        for way in ("read", "written"):
            num_bytes = counted.tiers.get(f"{tier}_bytes_{way}")
            figures[f"{tier}_{way}_gb"] = None if num_bytes is None else num_bytes / GB
    return figures


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
