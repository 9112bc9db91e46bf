"""Rates and latencies of transfers, each in turns with the copy that limits it. One thread."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from kvtier import _core
from kvtier.bench.copy_case import BlockShape, CopyCase, Moved
from kvtier.bench.copy_report import AUTO, BOTH, SMALL, SUBMIT, SWEEP, CopyRow
from kvtier.bench.copy_rig import DIRECTIONS, CopyRig
from kvtier.units import KIB, format_bytes

NUM_TURNS = 5
_SMALL_TURNS = 15
_SUBMIT_TURNS = 30
_COPY_ENGINE = "copy_engine"
_COPY_ENGINE_RUNS_MAX = 16384
_MODEL_FRAGMENTS = 28
_MODEL_FRAGMENT_BYTES = 32 * KIB
_SUBMIT_BLOCKS = 256
_FRAGMENT_BYTES = tuple(it * KIB for it in (2, 4, 8, 16, 32, 64, 256, 1024))
_QUICK_FRAGMENT_BYTES = tuple(it * KIB for it in (4, 32, 1024))
_NUM_FRAGMENTS = (_MODEL_FRAGMENTS, 64)


@dataclass(kw_only=True)
class CopyRun:
    """What the parts of one run share; they add notes and wrong bytes."""

    rig: CopyRig
    engine: _core.TransferEngine
    case_bytes: int
    is_quick: bool
    notes: list[str] = field(default_factory=list)
    wrong_bytes: int = 0

    def add_note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def methods(self) -> list[str]:
        """The methods that this device can use, the choice among them last."""
        info = self.rig.info
        usable = {
            _COPY_ENGINE: True,
            "staged": info["has_kernels"] and not info["is_memory_unified"],
            "zero_copy": info["has_kernels"] and info["can_kernels_reach_host"],
        }
        for method, is_usable in usable.items():
            if not is_usable:
                self.add_note(f"left out: {method.replace('_', ' ')}, which this device cannot do")
        return [*(method for method, is_usable in usable.items() if is_usable), AUTO]

    def check(self, case: CopyCase, direction: str, method: str) -> None:
        self.wrong_bytes += case.count_wrong_bytes(direction, method)


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Seconds of a case and of its limit, turn by turn."""

    case_s: Sequence[float]
    limit_s: Sequence[float]

    def row(self, row: CopyRow, *, case_bytes: int, limit_bytes: int) -> CopyRow:
        """Returns `row` with rates and their ratio."""
        rates = [case_bytes / seconds / 1e9 for seconds in self.case_s]
        limits = [limit_bytes / seconds / 1e9 for seconds in self.limit_s]
        ratios = [rate / limit for rate, limit in zip(rates, limits, strict=True)]
        return dataclasses.replace(
            row,
            gb_per_s=statistics.median(rates),
            limit_gb_per_s=statistics.median(limits),
            ratio=statistics.median(ratios),
            ratio_min=min(ratios),
            ratio_max=max(ratios),
            num_turns=len(ratios),
        )


def take_turns(
    case: Callable[[], float], limit: Callable[[], float], num_turns: int = NUM_TURNS
) -> Turns:
    """Runs both in turns, changing who goes first; a turn before the first one warms up."""
    case_s: list[float] = []
    limit_s: list[float] = []
    for turn in range(-1, num_turns):
        steps = [(case, case_s), (limit, limit_s)]
        for call, times_s in steps if turn % 2 else reversed(steps):
            seconds = call()
            if turn >= 0:
                times_s.append(seconds)
    return Turns(case_s=case_s, limit_s=limit_s)


def measure_sweep(run: CopyRun) -> Iterator[CopyRow]:
    """Sizes and numbers of fragments, directions and methods, on the bytes of the run."""
    methods = run.methods()
    for num_fragments in _NUM_FRAGMENTS[:1] if run.is_quick else _NUM_FRAGMENTS:
        for fragment_bytes in _QUICK_FRAGMENT_BYTES if run.is_quick else _FRAGMENT_BYTES:
            shape = _large_shape(run, fragment_bytes, num_fragments)
            if shape is None:
                continue
            with ExitStack() as stack:
                case = stack.enter_context(CopyCase(run.rig, run.engine, shape))
                few = stack.enter_context(CopyCase(run.rig, run.engine, _with_fewer_runs(shape)))
                for direction in DIRECTIONS:
                    for method in methods:
                        fitting = few if method == _COPY_ENGINE else case
                        yield _measure_sweep_case(run, fitting, direction, method)


def measure_both(run: CopyRun) -> Iterator[CopyRow]:
    """Loads and saves at once against large copies both ways at once."""
    shape = _large_shape(run, _MODEL_FRAGMENT_BYTES, _MODEL_FRAGMENTS)
    if shape is None:
        return
    with CopyCase(run.rig, run.engine, shape) as case:
        for method in run.methods():
            turns = take_turns(
                lambda method=method: case.move_both_s(method),  # type: ignore[misc]
                lambda: run.rig.copy_both_s(run.case_bytes),
            )
            row = _row(BOTH, shape, direction="both", method=method)
            yield turns.row(row, case_bytes=2 * shape.num_bytes, limit_bytes=2 * run.case_bytes)


def measure_small(run: CopyRun) -> Iterator[CopyRow]:
    """One block of a 7 B model against one copy of as many bytes."""
    shape = BlockShape(
        fragment_bytes=_MODEL_FRAGMENT_BYTES, num_fragments=_MODEL_FRAGMENTS, num_blocks=1
    )
    if not _is_fitting(run, shape):
        return
    with CopyCase(run.rig, run.engine, shape) as case:
        for direction in DIRECTIONS:
            for method in run.methods():
                yield _measure_small_case(run, case, direction, method)


def measure_submit(run: CopyRun) -> Iterator[CopyRow]:
    """What a job of many blocks costs whoever submits it, and the engine's own thread."""
    for fragment_bytes in (4 * KIB, _MODEL_FRAGMENT_BYTES):
        num_blocks = min(_SUBMIT_BLOCKS, run.case_bytes // (_MODEL_FRAGMENTS * fragment_bytes))
        if num_blocks == 0:
            run.add_note(f"no submit cost of fragments of {fragment_bytes} bytes: too few --bytes")
            continue
        shape = BlockShape(
            fragment_bytes=fragment_bytes, num_fragments=_MODEL_FRAGMENTS, num_blocks=num_blocks
        )
        with CopyCase(run.rig, run.engine, shape) as case:
            for direction in DIRECTIONS:
                yield _measure_submit_case(run, case, direction)


def _measure_small_case(run: CopyRun, case: CopyCase, direction: str, method: str) -> CopyRow:
    moved: list[Moved] = []

    def move() -> float:
        moved.append(case.move(direction, method))
        return moved[-1].seconds

    num_bytes = case.shape.num_bytes
    turns = take_turns(move, lambda: run.rig.copy_s(direction, num_bytes), _SMALL_TURNS)
    extra: dict[str, float | str] = {
        "us": 1e6 * statistics.median(turns.case_s),
        "one_copy_us": 1e6 * statistics.median(turns.limit_s),
        "waited_us": 1e6 * statistics.median(it.waited_s for it in moved[1:]),
    }
    run.check(case, direction, method)
    used = moved[-1].method
    row = _row(SMALL, case.shape, direction=direction, method=method, used=used, extra=extra)
    return turns.row(row, case_bytes=num_bytes, limit_bytes=num_bytes)


def _measure_submit_case(run: CopyRun, case: CopyCase, direction: str) -> CopyRow:
    case.move(direction, AUTO)
    before = run.engine.stats()
    moved = [case.move(direction, AUTO) for _ in range(_SUBMIT_TURNS)]
    after = run.engine.stats()
    calls_us = [1e6 * it.submit_s for it in moved]
    extra: dict[str, float | str] = {
        "caller_us": statistics.median(calls_us),
        "caller_max_us": max(calls_us),
        "engine_us": (after["submit_ns"] - before["submit_ns"]) / len(moved) / 1e3,
        "num_chunks": (after["num_chunks"] - before["num_chunks"]) / len(moved),
    }
    used = moved[-1].method
    return _row(SUBMIT, case.shape, direction=direction, method=AUTO, used=used, extra=extra)


def _measure_sweep_case(run: CopyRun, case: CopyCase, direction: str, method: str) -> CopyRow:
    used: list[str] = []

    def move() -> float:
        moved = case.move(direction, method)
        used.append(moved.method)
        return moved.seconds

    turns = take_turns(move, lambda: run.rig.copy_s(direction, run.case_bytes))
    run.check(case, direction, method)
    row = _row(SWEEP, case.shape, direction=direction, method=method, used=used[-1])
    return turns.row(row, case_bytes=case.shape.num_bytes, limit_bytes=run.case_bytes)


def _row(
    what: str,
    shape: BlockShape,
    *,
    direction: str,
    method: str,
    used: str | None = None,
    extra: dict[str, float | str] | None = None,
) -> CopyRow:
    return CopyRow(
        what=what,
        direction=direction,
        method=method,
        used=used,
        fragment_bytes=shape.fragment_bytes,
        num_fragments=shape.num_fragments,
        num_blocks=shape.num_blocks,
        extra=extra or {},
    )


def _large_shape(run: CopyRun, fragment_bytes: int, num_fragments: int) -> BlockShape | None:
    """As many blocks as make up the run's bytes; None, with a note, where not one fits."""
    num_blocks = max(1, run.case_bytes // (fragment_bytes * num_fragments))
    shape = BlockShape(
        fragment_bytes=fragment_bytes, num_fragments=num_fragments, num_blocks=num_blocks
    )
    return shape if _is_fitting(run, shape) else None


def _is_fitting(run: CopyRun, shape: BlockShape) -> bool:
    if shape.fits(run.rig.memory_bytes):
        return True
    run.add_note(
        f"left out: a block of {shape.num_fragments} fragments of {shape.fragment_bytes} bytes "
        f"does not fit into {format_bytes(run.rig.memory_bytes)}; raise --bytes"
    )
    return False


def _with_fewer_runs(shape: BlockShape) -> BlockShape:
    """For one copy a fragment, which takes seconds where the others take milliseconds."""
    num_blocks = min(shape.num_blocks, max(1, _COPY_ENGINE_RUNS_MAX // shape.num_fragments))
    return BlockShape(
        fragment_bytes=shape.fragment_bytes,
        num_fragments=shape.num_fragments,
        num_blocks=num_blocks,
    )
