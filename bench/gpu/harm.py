"""What saves cost an engine that computes: matrix products of a prefill beside them, on one GPU.

Usage: harm.py [--rounds N] [--output FILE], with torch's Python on a machine with a GPU. A step is
the matrix products of one prefill step of 2,048 tokens, of Qwen2.5-7B's shapes; beside each step
128 blocks of 16 tokens are saved to host memory, in 28 fragments each. Cases take turns: without
saves, with kernels on 2 to 64 of the GPU's processors, and with gentle saves. Prints what a step
takes. One thread.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kvtier
from kvtier import PagedGeometry

NUM_LAYERS = 28
NUM_ROWS = 1024
BLOCK_SHAPE = (4, 16, 256)  # KV heads, tokens, K and V of 128 numbers.
BLOCK_BYTES = NUM_LAYERS * 2 * 4 * 16 * 256
BLOCKS_A_STEP = 128
HOST_BYTES = 4 << 30
HIDDEN, QKV, MLP = 3584, 4608, 18944
STEP_TOKENS = 2048
STEPS_A_ROUND = 12
# As an engine that plans ahead: what the processor has handed over beyond what has ended.
STEPS_AHEAD = 2
READY_S_MAX = 30.0
CASES: dict[str, dict[str, Any]] = {
    **{f"{ctas} processors": {"transfer_ctas": ctas} for ctas in (2, 8, 32, 64)},
    "gentle saves": {"gentle_saves": True},
}


def main() -> int:
    arguments = _parse_arguments()
    import torch

    step = make_step(torch)
    layers = [
        torch.empty((NUM_ROWS, *BLOCK_SHAPE), dtype=torch.int16, device="cuda").random_()
        for _ in range(NUM_LAYERS)
    ]
    with contextlib.ExitStack() as stack:
        savers = {name: open_saver(layers, name, stack) for name in CASES}
        times_ms = measure(torch, step, {"no saves": None, **savers}, arguments.rounds)
    print_times(times_ms)
    if arguments.output is not None:
        arguments.output.write_text(
            json.dumps({"device": torch.cuda.get_device_name(), "step_ms": times_ms}) + "\n"
        )
    return 0


def make_step(torch: Any) -> Callable[[], None]:
    def make(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.01

    tokens = make(STEP_TOKENS, HIDDEN)
    weights = [
        (make(HIDDEN, QKV), make(HIDDEN, HIDDEN), make(HIDDEN, 2 * MLP), make(MLP, HIDDEN))
        for _ in range(NUM_LAYERS)
    ]

    def step() -> None:
        for qkv, out, up, down in weights:
            _ = tokens @ qkv
            attended = tokens @ out
            widened = attended @ up
            _ = widened[:, :MLP].contiguous() @ down

    return step


def open_saver(
    layers: Sequence[Any], case: str, stack: contextlib.ExitStack
) -> Callable[[], kvtier.Job[kvtier.PutResult]]:
    """Returns what saves the next 128 blocks to a store of its own, once memory is page-locked."""
    store = stack.enter_context(kvtier.open(None, host_bytes=HOST_BYTES, **CASES[case]))
    namespace = store.namespace(model="harm", block_bytes=BLOCK_BYTES, fingerprint=case)
    paged = namespace.attach(layers, PagedGeometry.from_tensors(layers))
    deadline_s = time.monotonic() + READY_S_MAX
    while time.monotonic() < deadline_s and "ready" not in str(_page_lock(store)):
        time.sleep(0.1)
    numbers = itertools.count()

    def save() -> kvtier.Job[kvtier.PutResult]:
        number = next(numbers)
        tokens = BLOCKS_A_STEP * 16
        keys = namespace.keys(range(number * tokens, (number + 1) * tokens))
        first_row = number * BLOCKS_A_STEP % NUM_ROWS
        return paged.save(keys, range(first_row, first_row + BLOCKS_A_STEP))

    return save


def _page_lock(store: kvtier.BlockStore) -> object:
    tiers: Any = store.stats()["tiers"]
    return tiers["host"]["mode"].get("page_lock")


def measure(
    torch: Any,
    step: Callable[[], None],
    cases: dict[str, Callable[[], kvtier.Job[kvtier.PutResult]] | None],
    num_rounds: int,
) -> dict[str, list[float]]:
    """Returns milliseconds a step, of each case and round."""
    times_ms: dict[str, list[float]] = {name: [] for name in cases}
    run_round(torch, step, None)  # The device's clocks rise.
    for round_index in range(num_rounds):
        for name in list(cases) if round_index % 2 else reversed(cases):
            times_ms[name].append(run_round(torch, step, cases[name]))
    return times_ms


def run_round(
    torch: Any, step: Callable[[], None], save: Callable[[], kvtier.Job[kvtier.PutResult]] | None
) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    jobs: list[kvtier.Job[kvtier.PutResult]] = []
    ends: list[Any] = []
    step()
    begin.record()
    for _ in range(STEPS_A_ROUND):
        step()
        if save is not None:
            jobs.append(save())
        ends.append(torch.cuda.Event())
        ends[-1].record()
        if len(ends) > STEPS_AHEAD:
            ends.pop(0).synchronize()
    end.record()
    torch.cuda.synchronize()
    for job in jobs:
        saved = job.wait(READY_S_MAX)
        if saved.num_accepted != BLOCKS_A_STEP:
            raise SystemExit(f"saved {saved.num_accepted} of {BLOCKS_A_STEP} blocks")
    return float(begin.elapsed_time(end)) / STEPS_A_ROUND


def print_times(times_ms: dict[str, list[float]]) -> None:
    alone = times_ms["no saves"]
    for name, each in times_ms.items():
        ratios = [value / by for value, by in zip(each, alone, strict=True)]
        print(
            f"{name:14} {statistics.median(each):7.3f} ms a step, "
            f"{100 * (statistics.median(ratios) - 1):+.2f} %  "
            f"({' '.join(f'{it:.2f}' for it in each)})"
        )


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="how often each case is measured")
    parser.add_argument("--output", type=Path, help="JSON file for all figures")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
