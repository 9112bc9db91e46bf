"""Prints what it costs to publish a store's state and to watch it, each beside its bound.

Usage: live_figures.py [--quick] [--path DIR]. Exit 1 when a bound is missed. One thread here;
`kvtier stats` and `kvtier top` run as processes of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import kvtier
from kvtier import block_store
from kvtier.bench.figure import Figure, print_figures
from kvtier.bench.pairs import spread, time_pairs
from kvtier.units import MIB

OUT = Path(__file__).resolve().parent / "out"
ROOT = OUT.parents[1]
NUM_BLOCKS = 64
TIMES_MORE_OFTEN = 25
BLOCK_BYTES = 256 * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter, noisier")
    parser.add_argument("--path", type=Path, default=OUT, help="where the stores lie")
    arguments = parser.parse_args()
    folder = arguments.path / "live_figures"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        figures = [*measure_publishing(folder, arguments.quick), *measure_watching(folder)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print_figures(figures)
    return 0 if all(figure.is_good for figure in figures) else 1


class Reader:
    """A store whose host tier is read as fast as one thread can."""

    def __init__(self, path: Path) -> None:
        self.store = kvtier.open(path, host_bytes=64 * MIB, disk_bytes=128 * MIB)
        self.ns = self.store.namespace(model="m", block_bytes=BLOCK_BYTES, fingerprint="f")
        self.keys = self.ns.keys(range(NUM_BLOCKS * 16))
        self.out = np.ones((NUM_BLOCKS, BLOCK_BYTES), np.uint8)
        self.ns.put(self.keys, self.out)
        self.store.flush()

    def read(self, num_calls: int) -> None:
        for _ in range(num_calls):
            assert self.ns.get(self.keys, self.out).num_blocks == NUM_BLOCKS


def measure_publishing(folder: Path, is_quick: bool) -> list[Figure]:
    """A saturated host tier with and without its state being told, in turns.

    Told many times as often as usual, and divided by that: the cost itself drowns in the noise.
    """
    with _publishing(block_store.PUBLISH_INTERVAL_S / TIMES_MORE_OFTEN):
        telling = Reader(folder / "telling")
    with _publishing(0.0):
        silent = Reader(folder / "silent")
    started_s = time.perf_counter()
    silent.read(10)
    num_calls = max(1, int(10 * 0.2 / (time.perf_counter() - started_s)))
    updates_before = telling.store.stats()["live_updates"]
    pairs = time_pairs(
        lambda: telling.read(num_calls),
        lambda: silent.read(num_calls),
        num_pairs=7 if is_quick else 61,
    )
    num_updates = int(str(telling.store.stats()["live_updates"])) - int(str(updates_before))
    telling.store.close()
    silent.store.close()
    lost_share = statistics.median(1 / it for it in pairs.rate_ratios) - 1
    return [
        Figure(
            name="time lost by publishing, gets from host by one thread",
            value=lost_share * 100 / TIMES_MORE_OFTEN,
            unit="%",
            at_most=0.5,
            note=f"{lost_share:.1%} at {TIMES_MORE_OFTEN} times the usual pace, {num_updates:,} "
            f"updates; rates {spread(pairs.rate_ratios)}",
        ),
    ]


def measure_watching(folder: Path) -> list[Figure]:
    """The time of `kvtier stats`, and the CPU time that `kvtier top` takes beside a busy store."""
    reader = Reader(folder / "watched")
    path = str(folder / "watched")
    times_s = [_run_kvtier("stats", path)[0] for _ in range(5)]
    num_frames = 10
    first_s = _run_kvtier("top", path, "--count", "1", "--interval", "0.1")[1]
    reader.read(100)
    seconds, cpu_s = _run_kvtier("top", path, "--count", str(num_frames))
    reader.store.close()
    return [
        Figure(
            name="kvtier stats",
            value=statistics.median(times_s) * 1e3,
            unit="ms",
            at_most=200,
            note=f"process start included; {len(times_s)} runs, "
            f"{min(times_s) * 1e3:.0f} to {max(times_s) * 1e3:.0f}",
        ),
        Figure(
            name="kvtier top, share of a core",
            value=(cpu_s - first_s) / num_frames * 100,
            unit="%",
            at_most=3,
            note=f"{num_frames} frames in {seconds:.1f} s, beside {first_s * 1e3:.0f} ms to start",
        ),
    ]


def _run_kvtier(*arguments: str) -> tuple[float, float]:
    """Returns seconds that passed, and seconds of CPU."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started_s = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "kvtier", *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    seconds = time.perf_counter() - started_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


@contextlib.contextmanager
def _publishing(interval_s: float) -> Iterator[None]:
    """Stores that are opened within tell their state this often; 0: never."""
    usual_s = block_store.PUBLISH_INTERVAL_S
    block_store.PUBLISH_INTERVAL_S = interval_s  # type: ignore[misc]
    try:
        yield
    finally:
        block_store.PUBLISH_INTERVAL_S = usual_s  # type: ignore[misc]


if __name__ == "__main__":
    sys.exit(main())
