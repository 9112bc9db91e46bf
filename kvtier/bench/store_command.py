"""`kvtier bench store`: the figures of the store beside their bounds. One thread."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvtier.bench.block_source import BenchmarkError
from kvtier.bench.disk_command import DiskTask, measure_disk
from kvtier.bench.figure import Figure, busy_note, load_average, print_figures
from kvtier.bench.host_figures import measure_host_copies, measure_lookups, measure_threads
from kvtier.bench.interference_figures import measure_counting, measure_engines, measure_writing
from kvtier.bench.prefetch_figures import measure_prefetch
from kvtier.errors import ConfigError
from kvtier.units import KIB, MIB

Part = Callable[[Path, bool], list[Figure]]

_DISK_BLOCK_BYTES = (64 * KIB, MIB, 14 * MIB)
_DISK_SECONDS = 20.0


def measure_disk_sizes(folder: Path, is_quick: bool) -> list[Figure]:
    """`kvtier bench disk` with the block sizes that have bounds."""
    figures: list[Figure] = []
    for block_bytes in _DISK_BLOCK_BYTES:
        path = folder / str(block_bytes)
        report = measure_disk(
            DiskTask(
                path=path,
                block_bytes=block_bytes,
                seconds=0.0 if is_quick else _DISK_SECONDS,
                num_bytes=max(16 * block_bytes, 64 * MIB) if is_quick else 0,
            )
        )
        if report.verdict != "good":
            raise BenchmarkError(report.verdict)
        figures += report.figures()
        shutil.rmtree(path, ignore_errors=True)
    return figures


HOST_PARTS: dict[str, Part] = {
    "host": lambda _, is_quick: measure_host_copies(is_quick),
    "lookup": lambda _, is_quick: measure_lookups(is_quick),
    "threads": lambda _, is_quick: measure_threads(is_quick),
}
DISK_PARTS: dict[str, Part] = {
    "disk": measure_disk_sizes,
    "prefetch": measure_prefetch,
    "writing": measure_writing,
    "counting": measure_counting,
    "engines": measure_engines,
}


def run_store(
    *, path: str | None, parts: Sequence[str] | None, is_quick: bool, is_json: bool
) -> int:
    """Runs the command; returns its exit code. Raises ConfigError for an unknown part."""
    known = {**HOST_PARTS, **DISK_PARTS}
    unknown = [part for part in parts or () if part not in known]
    if unknown:
        raise ConfigError(f"only: unknown part {unknown[0]!r}; there are {', '.join(known)}")
    chosen = {part: known[part] for part in parts or known}
    if path is None and not parts:
        print("note: without --path the parts with a disk are left out", file=sys.stderr)
        chosen = HOST_PARTS
    elif path is None and any(part in DISK_PARTS for part in chosen):
        raise ConfigError("path: these parts need a folder on the disk to be measured")
    return run_parts(chosen, path, is_quick=is_quick, is_json=is_json, program="kvtier bench store")


def run_parts(
    parts: dict[str, Part], path: str | None, *, is_quick: bool, is_json: bool, program: str
) -> int:
    """Runs parts in turn, each in a folder of its own, and prints their figures; 1: one missed."""
    figures: list[Figure] = []
    is_broken = False
    load_before = load_average()
    with work_folder(path) as folder:
        for name, measure in parts.items():
            print(f"measuring: {name}", file=sys.stderr)
            part_folder = folder / name
            try:
                figures += measure(part_folder, is_quick)
            except BenchmarkError as error:
                print(f"{program}: {name}: {error}", file=sys.stderr)
                is_broken = True
            shutil.rmtree(part_folder, ignore_errors=True)
    if is_json:
        print(json.dumps({figure.name: figure.to_json() for figure in figures}))
    else:
        print_figures(figures)
    note = busy_note(load_before)
    if note:
        print(note, file=sys.stderr)
    return 1 if is_broken or not all(figure.is_good for figure in figures) else 0


@contextmanager
def work_folder(parent: str | None) -> Iterator[Path]:
    """A folder of this run below `parent`, removed afterwards; without one nothing is made."""
    folder = Path(parent or ".") / f"kvtier-bench-{os.getpid()}"
    if parent is not None:
        folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        if parent is not None:
            shutil.rmtree(folder, ignore_errors=True)
