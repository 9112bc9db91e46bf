"""kvtier beside vLLM's own offloading on one GPU: engines in turns, and each bound.

Usage: serve.py [--turns N] [--first-visits] [--output FILE] [--commit NAME], with vLLM's Python on
a machine with a GPU; NAME is the commit that the figures are of. All engines are up from the start,
each in a process of its own, and one of them works at a time: in a turn each visits the same
prompts, which do not fit on the GPU, again and again. There are two sets of prompts, each new once.
kvtier's figures are divided by another engine's of the same turn, and the median of the turns is
judged. With --first-visits each turn has new prompts, which are asked once, and one turn before
the others is not judged: for every engine it is the slowest. Exit 1: a bound was missed. One
thread.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
GIB = 2**30
HOST_BYTES = 32 * GIB
ANSWER_S_MAX = 300
SHUTDOWN_S_MAX = 60
WORKLOAD = {
    "num_prompts": 64,
    "prompt_tokens": 4096,
    "concurrent_requests": 32,
    "device_bytes": 4 * GIB,
    "long_tokens": 128,
    "short_tokens": 16,
    "num_short_rounds": 3,
    "num_singles": 8,
}
BLOCK_TOKENS = 16
# As many as the host memory holds.
NUM_PROMPT_SETS = 2
CONNECTORS: dict[str, dict[str, Any] | None] = {
    "kvtier": {
        "kv_connector": "KvtierConnector",
        "kv_connector_module_path": "kvtier.adapters.vllm.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"kv_device": "cpu", "kv_max_cpu_memory": HOST_BYTES},
    },
    "native": {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": HOST_BYTES, "block_size": 256},
    },
    # A connector that keeps nothing: what vLLM pays for having one.
    "off": {
        "kv_connector": "KvtierConnector",
        "kv_connector_module_path": "kvtier.adapters.vllm.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"kv_device": "off"},
    },
    "none": None,
}
FIRST_VISITS_ONLY = ("off", "none")
FIRST_VISIT_MODES = ("kvtier", *FIRST_VISITS_ONLY)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
Figures = dict[str, Any]


class ServeError(Exception):
    """An engine failed; the text says which, and what it said last."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What kvtier has to reach, from its own figures and those of another engine in a turn."""

    name: str
    other: str
    judge: Callable[[Figures, Figures], float]
    at_least: float | None = None
    at_most: float | None = None

    def is_reached(self, value: float) -> bool:
        is_low = self.at_least is not None and value < self.at_least
        return not is_low and not (self.at_most is not None and value > self.at_most)

    def text(self) -> str:
        return f">= {self.at_least}" if self.at_most is None else f"<= {self.at_most}"


def ratio_of(round_name: str, figure: str) -> Callable[[Figures, Figures], float]:
    def judge(ours: Figures, theirs: Figures) -> float:
        return float(ours[round_name][figure]) / float(theirs[round_name][figure])

    return judge


def loading_ms(ours: Figures, _: Figures) -> float:
    alone_s = statistics.median(ours["single_ttft_s"])
    return float(1e3 * (alone_s - statistics.median(ours["device_hit_ttft_s"])))


def median_ratio_of(figure: str) -> Callable[[Figures, Figures], float]:
    def judge(ours: Figures, theirs: Figures) -> float:
        return float(statistics.median(ours[figure]) / statistics.median(theirs[figure]))

    return judge


BOUNDS = (
    Bound(
        name="revisit, tokens/s beside native",
        other="native",
        judge=ratio_of("revisit", "tokens_per_s"),
        at_least=1.0,
    ),
    Bound(
        name="revisit, mean TTFT beside native",
        other="native",
        judge=ratio_of("revisit", "ttft_mean_s"),
        at_most=0.97,
    ),
    Bound(
        name="short answers, prompt tokens/s beside native",
        other="native",
        judge=ratio_of("short", "prompt_tokens_per_s"),
        at_least=1.4,
    ),
    Bound(
        name="short answers, mean TTFT beside native",
        other="native",
        judge=ratio_of("short", "ttft_mean_s"),
        at_most=0.75,
    ),
    Bound(
        name="alone, ms more than still on the GPU", other="native", judge=loading_ms, at_most=7.0
    ),
    Bound(
        name="first visit, tokens/s beside no offloading",
        other="none",
        judge=ratio_of("cold", "tokens_per_s"),
        at_least=0.99,
    ),
    Bound(
        name="first visit, tokens/s beside a connector that keeps nothing",
        other="off",
        judge=ratio_of("cold", "tokens_per_s"),
        at_least=0.99,
    ),
    Bound(
        name="first visit, TPOT beside no offloading",
        other="none",
        judge=ratio_of("cold", "tpot_ms"),
        at_most=1.03,
    ),
)
FIRST_VISIT_BOUNDS = (
    *(it for it in BOUNDS if it.name.startswith("first visit")),
    *(
        Bound(
            name=f"first visit alone, TTFT beside {what}",
            other=other,
            judge=median_ratio_of("new_ttft_s"),
            at_most=1.02,
        )
        for other, what in (("none", "no offloading"), ("off", "a connector that keeps nothing"))
    ),
)


class ServedEngine:
    """An engine's process, which does as it is told."""

    def __init__(self, mode: str, folder: Path, extra: dict[str, Any]) -> None:
        self._mode = mode
        self._log = folder / f"{mode}.log"
        kv_transfer = CONNECTORS[mode]
        if mode == "kvtier" and kv_transfer is not None:
            settings = {**kv_transfer["kv_connector_extra_config"], **extra}
            kv_transfer = {**kv_transfer, "kv_connector_extra_config": settings}
        plan = folder / f"{mode}.json"
        plan.write_text(json.dumps({**WORKLOAD, "kv_transfer": kv_transfer}))
        self._answers_fd, told_fd = os.pipe()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(FOLDER / "serve_engine.py"), str(plan), str(told_fd)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(told_fd,),
                env={**os.environ, **ENVIRONMENT},
            )
        os.close(told_fd)

    def ask(self, command: str) -> Figures:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(command.encode() + b"\n")
            self._process.stdin.flush()
        return self.read_answer()

    def read_answer(self) -> Figures:
        """Returns the next answer. Raises ServeError when there is none."""
        line = b""
        while not line.endswith(b"\n"):
            is_ready, _, _ = select.select([self._answers_fd], [], [], ANSWER_S_MAX)
            got = os.read(self._answers_fd, 1 << 16) if is_ready else b""
            if not got:
                said = self._log.read_text(errors="replace")[-4000:]
                reason = "ended" if is_ready else f"said nothing for {ANSWER_S_MAX} s"
                raise ServeError(f"the engine with {self._mode} {reason}:\n{said}")
            line += got
        figures: Figures = json.loads(line)
        return figures

    def leave(self) -> None:
        """Lets the engine end."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def close(self) -> None:
        """Ends the engine and waits for it. May be called again."""
        if self._process.returncode is not None:
            return
        self.leave()
        try:
            self._process.wait(SHUTDOWN_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers_fd)


def main() -> int:
    arguments = _parse_arguments()
    run = {"commit": arguments.commit, "command": " ".join(sys.argv), **describe_machine()}
    results: Figures = {"run": run, "engines": {}, "warm_up": [], "turns": [], "checks": {}}
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            modes = FIRST_VISIT_MODES if arguments.first_visits else tuple(CONNECTORS)
            engines = start_engines(Path(folder), modes, arguments.extra, results, stack)
            if arguments.first_visits:
                measure_first_visits(engines, arguments.turns, results)
            else:
                measure(engines, arguments.turns, results)
            if arguments.output is not None:
                arguments.output.write_text(json.dumps(results) + "\n")
            for engine in engines.values():
                engine.leave()
    except ServeError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    if arguments.first_visits:
        return 0 if print_bounds(results["turns"], FIRST_VISIT_BOUNDS) else 1
    is_fast = print_bounds(results["turns"])
    return 0 if print_checks(results["checks"]) and is_fast else 1


def start_engines(
    folder: Path,
    modes: Sequence[str],
    extra: dict[str, Any],
    results: Figures,
    stack: contextlib.ExitStack,
) -> dict[str, ServedEngine]:
    """Returns all engines when they are up."""
    engines = {}
    for mode in modes:
        engines[mode] = ServedEngine(mode, folder, extra)
        stack.callback(engines[mode].close)
        # It measures the device's copies at its start, and alone.
        if mode == "kvtier":
            results["engines"][mode] = engines[mode].read_answer()
    for mode, engine in engines.items():
        results["engines"][mode] = results["engines"].get(mode) or engine.read_answer()
    return engines


def measure(engines: dict[str, ServedEngine], num_turns: int, results: Figures) -> None:
    for turn in range(num_turns):
        is_new = turn < NUM_PROMPT_SETS
        # Each is first in every other turn.
        for mode in list(engines) if turn % 2 else list(reversed(engines)):
            words = ["cold"] if is_new else []
            if mode not in FIRST_VISITS_ONLY:
                words.append("revisit")
            if not words:
                continue
            figures: Figures = {"mode": mode, "turn": turn}
            for word in words:
                figures |= engines[mode].ask(f"{word} {turn % NUM_PROMPT_SETS}")
            results["turns"].append(figures)
            print(json.dumps(figures), flush=True)
    for mode in ("native", "kvtier"):
        results["checks"][mode] = engines[mode].ask("check")


def measure_first_visits(
    engines: dict[str, ServedEngine], num_turns: int, results: Figures
) -> None:
    for turn in range(-1, num_turns):
        # Each comes once at every place of three turns that follow each other.
        first = turn % len(engines)
        modes = [*engines][first:] + [*engines][:first]
        for mode in modes:
            figures: Figures = {"mode": mode, "turn": turn}
            for command in (f"cold {turn}", f"alone alone-{turn}"):
                figures |= engines[mode].ask(command)
            results["turns" if turn >= 0 else "warm_up"].append(figures)
            print(json.dumps(figures), flush=True)


def print_bounds(turns: Sequence[Figures], bounds: Sequence[Bound] = BOUNDS) -> bool:
    by_turn = {(it["mode"], it["turn"]): it for it in turns}
    num_turns = len({it["turn"] for it in turns})
    is_good = True
    for bound in bounds:
        pairs = [
            (by_turn["kvtier", turn], by_turn[bound.other, turn])
            for turn in range(num_turns)
            if (bound.other, turn) in by_turn
        ]
        values = [bound.judge(ours, theirs) for ours, theirs in pairs]
        value = statistics.median(values)
        is_reached = bound.is_reached(value)
        is_good = is_good and is_reached
        each = " ".join(f"{it:.3f}" for it in values)
        verdict = "reached" if is_reached else "MISSED"
        print(f"{bound.name:60} {value:8.3f}  {bound.text():9} {verdict}  ({each})")
    return is_good


def print_checks(checks: dict[str, dict[str, int]]) -> bool:
    """All of the prompt's blocks must be as computed, but for its end, which is computed again."""
    for mode, check in checks.items():
        print(f"{mode}: {check['equal_blocks']} of {check['num_blocks']} blocks loaded as computed")
    num_prompt_blocks = WORKLOAD["prompt_tokens"] // BLOCK_TOKENS
    return checks["kvtier"]["equal_blocks"] >= num_prompt_blocks - 1


def describe_machine() -> dict[str, str]:
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return {"device": "unknown", "driver": "unknown"}
    name, _, driver = answer.stdout.splitlines()[0].partition(", ")
    return {"device": name, "driver": driver}


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3, help="how often engines are measured")
    parser.add_argument(
        "--first-visits", action="store_true", help="only ask new prompts, in each turn others"
    )
    parser.add_argument("--extra", type=json.loads, default={}, help="kvtier's settings, JSON")
    parser.add_argument("--output", type=Path, help="JSON file for all figures")
    parser.add_argument("--commit", default="unknown", help="what the figures are of")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
