"""kvtier with a disk beside recomputing on one GPU: both engines in turns, and each bound.

Usage: serve_disk.py --disk FOLDER [--turns N] [--output FILE] [--commit NAME], with vLLM's Python
on a machine with a GPU. As serve.py, but kvtier has 4 GiB of host memory and 40 GiB in FOLDER,
less than all prompts need in memory, and is judged against an engine without offloading. In the
end kvtier's engine is started anew, and what it loads from disk is compared with what the first
one computed. Exit 1: a bound was missed. One thread.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.serve import (
    GIB,
    Bound,
    Figures,
    ServedEngine,
    ServeError,
    describe_machine,
    median_ratio_of,
    print_bounds,
    ratio_of,
)

HOST_BYTES = 4 * GIB
DISK_BYTES = 40 * GIB
NUM_DIGESTS_APART = 1  # The end of a prompt is always computed.


BOUNDS = (
    Bound(
        name="first visit, TPOT beside none",
        other="none",
        judge=ratio_of("cold", "tpot_ms"),
        at_most=1.05,
    ),
    Bound(
        name="first visit, tokens/s beside none",
        other="none",
        judge=ratio_of("cold", "tokens_per_s"),
        at_least=0.98,
    ),
    Bound(
        name="revisit, tokens/s beside recomputing",
        other="none",
        judge=ratio_of("revisit", "tokens_per_s"),
        at_least=1.3,
    ),
    Bound(
        name="revisit, mean TTFT beside recomputing",
        other="none",
        judge=ratio_of("revisit", "ttft_mean_s"),
        at_most=1.0,
    ),
    Bound(
        name="revisit, P99 TTFT beside recomputing",
        other="none",
        judge=ratio_of("revisit", "ttft_p99_s"),
        at_most=1.0,
    ),
    Bound(
        name="short answers, prompt tokens/s beside recomputing",
        other="none",
        judge=ratio_of("short", "prompt_tokens_per_s"),
        at_least=1.3,
    ),
    Bound(
        name="alone, TTFT beside recomputing",
        other="none",
        judge=median_ratio_of("single_ttft_s"),
        at_most=1.0,
    ),
)


def main() -> int:
    arguments = _parse_arguments()
    run = {"commit": arguments.commit, "command": " ".join(sys.argv), **describe_machine()}
    results: Figures = {"run": run, "engines": {}, "turns": [], "checks": {}}
    settings = {
        "kv_device": "hybrid",
        "kv_max_cpu_memory": HOST_BYTES,
        "disk_path": str(arguments.disk),
        "disk_bytes": DISK_BYTES,
        **arguments.extra,
    }
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            engines: dict[str, ServedEngine] = {}
            for mode in ("kvtier", "none"):
                engines[mode] = ServedEngine(mode, Path(folder), settings)
                stack.callback(engines[mode].close)
                results["engines"][mode] = engines[mode].read_answer()
            measure(engines, arguments.turns, results)
            computed = engines["kvtier"].ask("digest check")
            engines["kvtier"].close()
            # However slow the disk is: it is to be read now.
            again = ServedEngine("kvtier", Path(folder), {**settings, "load_cap": "off"})
            stack.callback(again.close)
            results["engines"]["kvtier again"] = again.read_answer()
            results["checks"] = compare(computed, again.ask("digest check"))
            again.leave()
            engines["none"].leave()
    except ServeError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    finally:
        if arguments.output is not None:
            arguments.output.write_text(json.dumps(results) + "\n")
    last = [it["metrics"] for it in results["turns"] if "metrics" in it][-1]
    for name, value in sorted(last.items()):
        print(f"{name:60} {value:,.0f}")
    is_fast = print_bounds(results["turns"], BOUNDS)
    checks = results["checks"]
    print(f"{checks['equal_blocks']} of {checks['num_blocks']} blocks came from disk as computed")
    is_right = checks["equal_blocks"] >= checks["num_blocks"] - NUM_DIGESTS_APART
    return 0 if is_fast and is_right and checks["num_cached_tokens"] > 0 else 1


def measure(engines: dict[str, ServedEngine], num_turns: int, results: Figures) -> None:
    for turn in range(num_turns):
        # Each is first in every other turn.
        for mode in list(engines) if turn % 2 else list(reversed(engines)):
            figures: Figures = {"mode": mode, "turn": turn}
            for word in ("cold", "revisit"):
                figures |= engines[mode].ask(f"{word} {turn}")
            if mode == "kvtier":
                figures["metrics"] = engines[mode].ask("metrics")
            results["turns"].append(figures)
            shown = {name: it for name, it in figures.items() if name != "metrics"}
            print(json.dumps(shown), flush=True)


def compare(computed: Figures, loaded: Figures) -> dict[str, Any]:
    return {
        "num_blocks": len(computed["digests"]),
        "equal_blocks": len(set(computed["digests"]) & set(loaded["digests"])),
        "num_cached_tokens": loaded["num_cached_tokens"],
    }


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--disk", type=Path, required=True, help="folder on the disk to measure")
    parser.add_argument("--turns", type=int, default=2, help="how often engines are measured")
    parser.add_argument("--extra", type=json.loads, default={}, help="kvtier's settings, JSON")
    parser.add_argument("--output", type=Path, help="JSON file for all figures")
    parser.add_argument("--commit", default="unknown", help="what the figures are of")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
