"""What `kvtier bench serve` found: modes by point of the sweep, and what is wrong. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kvtier.bench.serve import articles
from kvtier.bench.serve.engine_metrics import EngineCounters
from kvtier.bench.serve.serve_figures import Figures, median_figures
from kvtier.bench.serve.serve_mode import DISK, HYBRID, KVTIER_MODES, OFF
from kvtier.bench.serve.sweep import format_value
from kvtier.bench.serve.workload_run import WorkloadRecord

Outputs = Mapping[tuple[int, int, int], tuple[int, ...] | str]
"""By (run, session, turn)."""


@dataclass(kw_only=True)
class ModeResult:
    """One mode at one point: whole runs, and why there are no more."""

    mode: str
    point: float | None
    runs: list[Figures] = field(default_factory=list)
    counted: list[EngineCounters] = field(default_factory=list)
    outputs: dict[tuple[int, int, int], tuple[int, ...] | str] = field(default_factory=dict)
    num_missing: int = 0
    error: str | None = None

    @property
    def figures(self) -> Figures:
        return median_figures(self.runs) if self.runs else {}

    def add_run(self, run: int, record: WorkloadRecord) -> None:
        """Takes in the answers of a run that was not ended early."""
        for (session, turn), asked in record.asked.items():
            if asked.answer.failure is None:
                self.outputs[run, session, turn] = asked.answer.output
        self.num_missing += record.num_missing


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Outputs of a mode beside those of the first mode that has any."""

    reference: str
    num_compared: int
    num_different: int


@dataclass(kw_only=True)
class ServeReport:
    """Grows while modes are measured; may be shown at any time."""

    surroundings: Mapping[str, object]
    """What was measured, on what: for the JSON object and the table's title."""
    axis: str | None
    is_exact: bool
    """Whether equal outputs can be asked for: engines that compute in float32."""
    results: list[ModeResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_interrupted: bool = False

    @property
    def points(self) -> list[float | None]:
        return list(dict.fromkeys(it.point for it in self.results))

    def at(self, point: float | None) -> list[ModeResult]:
        return [it for it in self.results if it.point == point]

    def figures_at(self, point: float | None) -> dict[str, Figures]:
        return {it.mode: it.figures for it in self.at(point) if it.runs}

    def compare(self, result: ModeResult) -> Comparison | None:
        """None where there is nothing to compare with: of the reference itself, for one."""
        reference = self._reference(result.point)
        if reference is None or reference is result:
            return None
        both = reference.outputs.keys() & result.outputs.keys()
        return Comparison(
            reference=reference.mode,
            num_compared=len(both),
            num_different=sum(reference.outputs[it] != result.outputs[it] for it in both),
        )

    @property
    def faults(self) -> list[str]:
        """Why the figures say nothing, or less than was asked for; none of a good run."""
        faults = ["interrupted: this is not all that was asked for"] * self.is_interrupted
        for result in self.results:
            name = self.name_of(result)
            if result.error is not None:
                faults.append(f"{name}: {result.error}")
            elif result.num_missing:
                faults.append(
                    f"{name}: {result.num_missing} requests have no whole answer; times to the "
                    "first token count them as long as they were waited for, so they are bounds "
                    "from below; raise --timeout-s"
                )
        faults += self._traffic_faults()
        if self.is_exact:
            faults += list(self._difference_texts())
        return faults

    @property
    def remarks(self) -> list[str]:
        """What a reader has to know beside the faults."""
        remarks = list(self.notes)
        if not self.is_exact:
            remarks += [
                f"{text}: in 16 bits another batch may round another way, and change a token; "
                "compare in float32 (-- --dtype float32)"
                for text in self._difference_texts()
            ]
        remarks += self._hybrid_texts()
        for point in self.points:
            unevicted = self._no_eviction_text(point)
            if unevicted is not None and unevicted not in self.faults:
                remarks.append(unevicted)
            reference = self._reference(point)
            if reference is not None and _are_alike(reference.outputs):
                remarks.append(
                    "all requests were answered alike, so that equal outputs prove little: use "
                    "another model"
                )
            order = articles.judge_order(self.figures_at(point))
            if order is not None:
                remarks.append(f"{self.name_point(point)}{order}")
        return remarks

    def name_point(self, point: float | None) -> str:
        if point is None or self.axis is None:
            return ""
        return f"{self.axis} {format_value(self.axis, point)}: "

    def name_of(self, result: ModeResult) -> str:
        return f"{self.name_point(result.point)}{result.mode}"

    def to_json(self) -> dict[str, object]:
        """The object that `--json` prints; `good` says that there is no fault."""
        return {
            **self.surroundings,
            "axis": self.axis,
            "results": [self._result_json(it) for it in self.results],
            "articles": {
                "serving": {"title": articles.SERVING_TITLE, "modes": articles.SERVING},
                "edge": {"title": articles.EDGE_TITLE, "modes": articles.EDGE},
            },
            "faults": self.faults,
            "notes": self.remarks,
            "good": not self.faults,
        }

    def _result_json(self, result: ModeResult) -> dict[str, object]:
        comparison = self.compare(result)
        return {
            "mode": result.mode,
            "point": result.point,
            "figures": result.figures,
            "runs": result.runs,
            "num_missing": result.num_missing,
            "outputs": None
            if comparison is None
            else {
                "reference": comparison.reference,
                "compared": comparison.num_compared,
                "different": comparison.num_different,
            },
            "error": result.error,
        }

    def _reference(self, point: float | None) -> ModeResult | None:
        with_outputs = [it for it in self.at(point) if it.outputs]
        with_outputs.sort(key=lambda it: it.mode != OFF)
        return with_outputs[0] if with_outputs else None

    def _traffic_faults(self) -> Iterator[str]:
        texts = {point: self._no_eviction_text(point) for point in self.points}
        if texts and all(texts.values()):
            yield next(text for text in texts.values() if text is not None)
            return
        for result in self.results:
            if result.mode in KVTIER_MODES and result.counted and texts[result.point] is None:
                yield from self._load_faults(result)

    def _no_eviction_text(self, point: float | None) -> str | None:
        """A sentence when no mode had to give anything up; None also where it can't be told."""
        measured = [it for it in self.at(point) if it.counted]
        if not measured or not all(_has_evicted(it) is False for it in measured):
            return None
        counted = measured[0].counted[-1]
        return (
            f"{self.name_point(point)}nothing was evicted, so nothing was measured: the engine's "
            f"own cache of {counted.device_room_tokens:,.0f} tokens held the "
            f"{counted.new_device_tokens:,.0f} of each run; give --device-tokens, or more "
            "--prompts or --input-tokens"
        )

    def _load_faults(self, result: ModeResult) -> Iterator[str]:
        if not _sum_tiers(result, "host_hits", "disk_hits"):
            yield (
                f"{self.name_of(result)}: nothing was loaded back, so only what saving costs was "
                "measured; give --visits, or less --device-tokens"
            )
        elif result.mode == DISK and not _sum_tiers(result, "disk_bytes_read"):
            yield (
                f"{self.name_of(result)}: nothing was read from the disk: its host memory held "
                "everything; give less --disk-host-bytes, or more --prompts"
            )

    def _hybrid_texts(self) -> Iterator[str]:
        """A hybrid whose host tier held everything is a cpu that also writes."""
        for result in self.results:
            if (
                result.mode == HYBRID
                and _sum_tiers(result, "host_hits")
                and not _sum_tiers(result, "disk_bytes_read")
            ):
                yield (
                    f"{self.name_of(result)}: its host tier held everything, and nothing was read "
                    "from its disk; give less --host-bytes to see that"
                )

    def _difference_texts(self) -> Iterator[str]:
        for result in self.results:
            comparison = self.compare(result)
            if comparison is not None and comparison.num_different:
                yield (
                    f"{self.name_of(result)}: {comparison.num_different} of "
                    f"{comparison.num_compared} outputs differ from those of {comparison.reference}"
                )


def _sum_tiers(result: ModeResult, *names: str) -> float:
    return sum(counted.tiers.get(name, 0) for counted in result.counted for name in names)


def _has_evicted(result: ModeResult) -> bool | None:
    answers = [counted.has_evicted for counted in result.counted]
    return None if None in answers else any(answers)


def _are_alike(outputs: Outputs) -> bool:
    return len(outputs) > 1 and len(set(outputs.values())) == 1
