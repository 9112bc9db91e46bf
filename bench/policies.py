"""Scores eviction and admission policies against LRU and the optimum: hit rates by tier size.

Usage: policies.py [--trace FILE] [--blocks N ...] [--only LOAD ...] [--json]. One thread, seeded.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvtier import _core
from kvtier.bench.trace import read_trace

POLICIES = {
    "LRU": "lru",
    "S3-FIFO": "s3fifo",
    "second use + LRU": "second_use",
    "adaptive": "adaptive",
}
OPTIMUM = "optimum"
TRACE_BLOCKS = (1_000, 3_000, 10_000, 30_000)
SEED = 1


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests as the core takes them, and the sizes of tier that are of interest."""

    block_ids: npt.NDArray[np.uint64]
    request_ends: npt.NDArray[np.uint64]
    capacities: tuple[int, ...]


def make_load(requests: Iterable[Iterable[object]], capacities: tuple[int, ...]) -> Load:
    """Numbers the blocks in order of appearance."""
    numbers: dict[object, int] = {}
    ids: list[int] = []
    ends: list[int] = []
    for request in requests:
        ids += [numbers.setdefault(block, len(numbers)) for block in request]
        ends.append(len(ids))
    return Load(
        block_ids=np.array(ids, dtype=np.uint64),
        request_ends=np.array(ends, dtype=np.uint64),
        capacities=capacities,
    )


def scan() -> Load:
    """Half the requests read once through what never comes again, half use a small hot set."""
    rng = random.Random(SEED)
    requests = (
        [("hot", rng.randrange(50), i) for i in range(8)]
        if number % 2
        else [("scan", number, i) for i in range(8)]
        for number in range(10_000)
    )
    return make_load(requests, (200, 400, 1_000))


def loop() -> Load:
    """The same prompts in the same order, more than fit."""
    requests = ([(number % 500, i) for i in range(8)] for number in range(10_000))
    return make_load(requests, (1_000, 2_000, 4_000))


def zipf() -> Load:
    """Prompts by popularity, each with a tail of its own."""
    rng = random.Random(SEED)
    weights = [1 / (rank + 1) for rank in range(2_000)]
    chosen = rng.choices(range(2_000), weights, k=10_000)
    requests = ([(prompt, i) for i in range(8)] + [("tail", n)] for n, prompt in enumerate(chosen))
    return make_load(requests, (500, 2_000, 8_000))


def one_shot() -> Load:
    """Nine prompts of ten never come back; the tenth is one of 60."""
    rng = random.Random(SEED)
    requests = (
        [("hot", rng.randrange(60), i) for i in range(8)]
        if rng.random() < 0.1
        else [("once", number, i) for i in range(8)]
        for number in range(15_000)
    )
    return make_load(requests, (300, 600, 2_000))


def sets() -> Load:
    """Six documents, each asked three times in turn; then six others, and so on."""
    requests = ([(number // 18, number % 6, i) for i in range(60)] for number in range(18 * 12))
    return make_load(requests, (400, 540, 1_000))


LOADS: dict[str, Callable[[], Load]] = {
    "scan": scan,
    "loop": loop,
    "zipf": zipf,
    "one-shot": one_shot,
    "sets": sets,
}


def score(load: Load, capacity_blocks: int) -> dict[str, float]:
    """Hit rates in percent of all block references, by column."""
    num_blocks = max(1, len(load.block_ids))
    arguments = (load.block_ids, load.request_ends)
    rates = {
        title: 100 * _core.simulate_policy(*arguments, policy, capacity_blocks)[0] / num_blocks
        for title, policy in POLICIES.items()
    }
    rates[OPTIMUM] = 100 * _core.count_optimal_hits(*arguments, capacity_blocks) / num_blocks
    return rates


def table(name: str, rows: dict[int, dict[str, float]]) -> str:
    titles = [*POLICIES, OPTIMUM]
    lines = [f"{name:>10} blocks  " + "  ".join(titles)]
    for capacity, rates in rows.items():
        cells = "  ".join(f"{rates[title]:{len(title)}.2f}" for title in titles)
        lines.append(f"{capacity:17,d}  {cells}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="a request trace, as of kvtier bench trace")
    parser.add_argument("--blocks", type=int, nargs="+", help="sizes of the tier, in blocks")
    parser.add_argument("--only", nargs="+", choices=[*LOADS, "trace"], help="these loads alone")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    loads = dict(LOADS)
    if arguments.trace is not None:
        requests = [request.hash_ids for request in read_trace(arguments.trace)]
        loads = {"trace": lambda: make_load(requests, TRACE_BLOCKS), **loads}
    results = {}
    for name, make in loads.items():
        if arguments.only and name not in arguments.only:
            continue
        load = make()
        capacities = arguments.blocks or load.capacities
        results[name] = {capacity: score(load, capacity) for capacity in capacities}
        if not arguments.json:
            print(table(name, results[name]), end="\n\n", flush=True)
    if arguments.json:
        json.dump(results, sys.stdout)
        print()


if __name__ == "__main__":
    main()
