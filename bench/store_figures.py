"""Prints the figures that the store has to reach, each beside its bound; exit 1 when one is missed.

Usage: store_figures.py [--only PART ...] [--quick] [--path DIR] [--json]. Children of this script
fill and reopen stores, so that a restart is a real one. One thread here.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import numpy as np

import kvtier
from kvtier.bench.block_source import CALL_BYTES, BlockSource, bench_namespace
from kvtier.bench.figure import Figure
from kvtier.bench.replay import tier_counters
from kvtier.bench.store_command import DISK_PARTS, HOST_PARTS, Part, run_parts
from kvtier.units import KIB, MIB

OUT = Path(__file__).resolve().parent / "out"
NUM_SMALL_BLOCKS = 1_000_000
SMALL_BLOCK_BYTES = 64


def main() -> int:
    arguments = _parse_arguments()
    if arguments.child:
        return _run_child(arguments.child)
    folder: Path = arguments.path or OUT
    folder.mkdir(parents=True, exist_ok=True)
    return run_parts(
        {part: PARTS[part] for part in arguments.only or PARTS},
        str(folder),
        is_quick=arguments.quick,
        is_json=arguments.json,
        program="store_figures",
    )


def measure_written(folder: Path, is_quick: bool) -> list[Figure]:
    """Bytes written to disk per byte offered, nothing evicted."""
    figures = []
    for block_bytes, bound in ((1 * MIB, 1.03), (256 * KIB, 1.03), (64 * KIB, 1.08)):
        num_blocks = (128 if is_quick else 1024) * MIB // block_bytes
        path = folder / str(block_bytes)
        before_bytes = _process_written_bytes()
        with kvtier.open(path, host_bytes=256 * MIB, disk_bytes=2 * 1024 * MIB) as store:
            _fill(store, block_bytes, num_blocks)
            store.flush()
            disk = tier_counters(store)["disk"]
        offered_bytes = num_blocks * block_bytes
        note = f"{disk['blocks']:,} of {num_blocks:,} blocks on disk"
        if before_bytes is not None:
            process_bytes = (_process_written_bytes() or 0) - before_bytes
            note += f"; by the kernel's count {process_bytes / offered_bytes:.3f}"
        figures.append(
            Figure(
                name=f"written per offered, {block_bytes // KIB} KiB blocks",
                value=disk["bytes_written"] / offered_bytes,
                at_most=bound,
                # A block that is not on disk would make the figure look better than it is.
                at_least=1.0,
                note=note,
            )
        )
        shutil.rmtree(path)
    return figures


def measure_reopen(folder: Path, is_quick: bool) -> list[Figure]:
    """Time of kvtier.open with a million small blocks on disk, and what their index takes."""
    num_blocks = NUM_SMALL_BLOCKS // (20 if is_quick else 1)
    filled = _child("fill", folder, num_blocks)
    killed = [_child("reopen", folder, num_blocks) for _ in range(3)]
    # The first of these opens what was killed; it closes, and the others open that.
    _child("reopen_and_close", folder, num_blocks)
    closed = [_child("reopen_and_close", folder, num_blocks) for _ in range(3)]
    figures = [
        Figure(
            name=f"reopen {num_blocks:,} blocks after {name}",
            value=statistics.median(answer["open_s"] for answer in answers),
            unit="s",
            at_most=1.0,
            # Wall time well above CPU time: the disk was slow, or others used the machine.
            note=f"CPU {statistics.median(answer['open_cpu_s'] for answer in answers):.2f} s; "
            f"{min(answer['num_found'] for answer in answers):,.0f} blocks found",
        )
        for name, answers in (("kill -9", killed), ("close", closed))
    ]
    num_lost = max(num_blocks - answer["num_found"] for answer in (*killed, *closed))
    figures.append(
        Figure(name="flushed blocks lost by restarts", value=num_lost, unit="blocks", at_most=0)
    )
    figures.append(
        Figure(
            name="index per block",
            value=filled["index_bytes"] / num_blocks,
            unit="bytes",
            at_most=128,
            note=f"{filled['index_bytes'] / MIB:.0f} MiB for {num_blocks:,} blocks",
        )
    )
    return figures


def measure_start(folder: Path, is_quick: bool) -> list[Figure]:
    """Time of `import kvtier` inside Python, and of `kvtier --help` as a whole command."""
    num_runs = 5 if is_quick else 11
    folder.mkdir(parents=True)
    program = (
        "import time; started = time.perf_counter(); import kvtier; "
        "print(time.perf_counter() - started)"
    )
    script = Path(sys.executable).with_name("kvtier")
    command = [str(script)] if script.exists() else [sys.executable, "-m", "kvtier.cli.main"]
    import_s, help_s = [], []
    for _ in range(num_runs):
        answer = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        )
        import_s.append(float(answer.stdout))
        started_s = time.perf_counter()
        subprocess.run([*command, "--help"], check=True, capture_output=True)
        help_s.append(time.perf_counter() - started_s)
    return [
        Figure(
            name=name,
            value=statistics.median(values) * 1e3,
            unit="ms",
            at_most=bound,
            note=f"median of {num_runs}, {min(values) * 1e3:.0f} to {max(values) * 1e3:.0f}",
        )
        for name, values, bound in (
            ("import kvtier", import_s, 100),
            ("kvtier --help", help_s, 150),
        )
    ]


PARTS: dict[str, Part] = {
    "start": measure_start,
    "written": measure_written,
    **HOST_PARTS,
    **DISK_PARTS,
    "reopen": measure_reopen,
}


def _fill(store: kvtier.BlockStore, block_bytes: int, num_blocks: int) -> None:
    """Puts one chain of blocks, no faster than the disk takes it."""
    # Half of the backlog's own bound, which is half of the host tier: in one long chain nothing can
    # be evicted above a block that waits for the disk.
    backlog_bytes_max = min(CALL_BYTES, tier_counters(store)["host"]["bytes_capacity"] // 4)
    source = BlockSource(bench_namespace(store, block_bytes), num_blocks)
    source.put_all(store, backlog_bytes_max=backlog_bytes_max)


def _run_child(task_text: str) -> int:
    """A child's side of the reopen part: answers one JSON object, then waits to be killed."""
    task = json.loads(task_text)
    path, num_blocks = task["path"], int(task["num_blocks"])
    disk_bytes = 8192 * num_blocks + 256 * MIB
    started_s, cpu_started_s = time.perf_counter(), time.process_time()
    store = kvtier.open(path, host_bytes=64 * MIB, disk_bytes=disk_bytes)
    answer: dict[str, float] = {
        "open_s": time.perf_counter() - started_s,
        "open_cpu_s": time.process_time() - cpu_started_s,
    }
    if task["name"] == "fill":
        _fill(store, SMALL_BLOCK_BYTES, num_blocks)
        store.flush(timeout_s=300)
    keys = bench_namespace(store, SMALL_BLOCK_BYTES).keys(np.arange(num_blocks, dtype=np.int64))
    lookup = bench_namespace(store, SMALL_BLOCK_BYTES).lookup(keys, prefix=False)
    answer["num_found"] = lookup.num_blocks
    answer["index_bytes"] = cast("int", store.stats()["index_bytes"])
    if task["name"] == "reopen_and_close":
        store.close()
    print(json.dumps(answer), flush=True)
    if task["name"] != "reopen_and_close":
        sys.stdin.read()
    return 0


def _child(name: str, folder: Path, num_blocks: int) -> dict[str, float]:
    """Starts a child and reads its answer; kills it (-9) unless it has ended by itself."""
    _drop_from_page_cache(folder)
    task = json.dumps({"name": name, "path": str(folder), "num_blocks": num_blocks})
    with subprocess.Popen(
        [sys.executable, __file__, "--child", task],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
        finally:
            if name == "reopen_and_close":
                process.wait()
            process.kill()
    if not line:
        raise SystemExit(f"store_figures: the child for {name!r} failed")
    return cast("dict[str, float]", json.loads(line))


def _drop_from_page_cache(folder: Path) -> None:
    """So that opening reads the disk; what isn't clean stays, which favours nobody."""
    for path in folder.glob("**/*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def _process_written_bytes() -> int | None:
    """What the kernel says this process sent to storage; None where it does not say."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Prints the figures the store has to reach.")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="some parts only")
    parser.add_argument("--quick", action="store_true", help="less data: to try it out")
    parser.add_argument("--path", type=Path, help="where to measure (default: bench/out)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
