"""Prints the figures that the store has to reach, each beside its bound; exit 1 when one is missed.

Usage: store_figures.py [--only PART ...] [--quick] [--path DIR] [--json]. Children of this script
fill and reopen stores, so that a restart is a real one. One thread here.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

import kvtier
from kvtier.bench.payload import U8, PayloadPattern, payload_words
from kvtier.bench.raw_device import raw_probe
from kvtier.bench.replay import tier_counters
from kvtier.machine import num_cpus

OUT = Path(__file__).resolve().parent / "out"
KIB, MIB = 1 << 10, 1 << 20
GB = 1e9
NUM_SMALL_BLOCKS = 1_000_000
SMALL_BLOCK_BYTES = 64
CALL_BYTES = 32 * MIB
NUM_PAIRS = 7
LOAD_PER_CPU_MAX = 0.5


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value with its bound: at most or at least, as the name says."""

    name: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def is_good(self) -> bool:
        is_low_enough = self.at_most is None or self.value <= self.at_most
        is_high_enough = self.at_least is None or self.value >= self.at_least
        return is_low_enough and is_high_enough


def main() -> int:
    arguments = _parse_arguments()
    if arguments.child:
        return _run_child(arguments.child)
    figures: list[Figure] = []
    load_before = os.getloadavg()[0]
    with _work_folder(arguments.path) as folder:
        for part in arguments.only or PARTS:
            print(f"measuring: {part}", file=sys.stderr)
            part_folder = folder / part
            figures += PARTS[part](part_folder, arguments.quick)
            shutil.rmtree(part_folder, ignore_errors=True)
    if arguments.json:
        print(json.dumps({f.name: {**dataclasses.asdict(f), "good": f.is_good} for f in figures}))
    else:
        _print_table(figures)
    if load_before > LOAD_PER_CPU_MAX * num_cpus():
        print(
            f"note: load {load_before:.1f} on {num_cpus()} CPUs before the start: others used this "
            "machine, so rates, ratios and times say little. Repeat on an idle one.",
            file=sys.stderr,
        )
    return 0 if all(figure.is_good for figure in figures) else 1


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


def measure_disk_get(folder: Path, is_quick: bool) -> list[Figure]:
    """Disk reads through the store and its threads engine against the bare device, in pairs."""
    block_bytes = MIB
    num_blocks = 128 if is_quick else 512
    store_rates, raw_rates = [], []
    with kvtier.open(folder, host_bytes=0, disk_bytes=2 * num_blocks * MIB, io="threads") as store:
        keys = _fill(store, block_bytes, num_blocks)
        store.flush()
        namespace = _namespace(store, block_bytes)
        pattern = PayloadPattern(block_bytes)
        call_blocks = num_blocks // 4
        out = np.zeros((call_blocks, block_bytes), dtype=np.uint8)
        with raw_probe(folder, file_bytes=num_blocks * MIB, block_bytes=block_bytes) as probe:
            probe.write()
            for pair in range(NUM_PAIRS):
                seconds, num_got = 0.0, 0
                for start in range(0, num_blocks, call_blocks):
                    part = keys[start : start + call_blocks]
                    # Neither page faults nor what an earlier call left belong to the figure.
                    out.fill(0xA5)
                    started_s = time.perf_counter()
                    num_got += namespace.get(part, out, request=f"pair {pair}").num_blocks
                    seconds += time.perf_counter() - started_s
                    if pattern.check(payload_words(part), out).wrong_bytes:
                        raise SystemExit("store_figures: wrong bytes came back")
                store_rates.append(num_got * block_bytes / seconds / GB)
                raw_rates.append(probe.read().gb_per_s)
        num_read_bytes = tier_counters(store)["disk"]["bytes_read"]
    ratios = [store / raw for store, raw in zip(store_rates, raw_rates, strict=True)]
    return [
        Figure(
            name="disk get / bare device, 1 MiB blocks",
            value=statistics.median(ratios),
            at_least=0.8,
            # Nothing reads faster than the device: more than noise means that the probe is wrong.
            at_most=1.1,
            note=f"{NUM_PAIRS} pairs, {min(ratios):.2f} to {max(ratios):.2f}; "
            f"{num_read_bytes / GB:.1f} GB read",
        ),
        Figure(name="disk get", value=statistics.median(store_rates), unit="GB/s"),
        Figure(name="bare device read", value=statistics.median(raw_rates), unit="GB/s"),
    ]


PARTS: dict[str, Callable[[Path, bool], list[Figure]]] = {
    "start": measure_start,
    "written": measure_written,
    "disk-get": measure_disk_get,
    "reopen": measure_reopen,
}


def _namespace(store: kvtier.BlockStore, block_bytes: int) -> kvtier.Namespace:
    # One token a block: a million keys come from one call.
    return store.namespace(
        model="store-figures", block_bytes=block_bytes, block_tokens=1, fingerprint="none"
    )


def _fill(store: kvtier.BlockStore, block_bytes: int, num_blocks: int) -> U8:
    """Puts one chain of blocks, no faster than the disk takes it; returns its keys."""
    namespace = _namespace(store, block_bytes)
    keys = namespace.keys(np.arange(num_blocks, dtype=np.int64))
    words = payload_words(keys)
    pattern = PayloadPattern(block_bytes)
    call_blocks = max(1, min(CALL_BYTES // block_bytes, 4096))
    data = np.empty((call_blocks, block_bytes), dtype=np.uint8)
    # Half of the backlog's own bound, which is half of the host tier: in one long chain nothing can
    # be evicted above a block that waits for the disk.
    backlog_bytes_max = min(CALL_BYTES, tier_counters(store)["host"]["bytes_capacity"] // 4)
    for start in range(0, num_blocks, call_blocks):
        part = keys[start : start + call_blocks]
        pattern.fill(words[start : start + call_blocks], data[: len(part)])
        parent = keys[start - 1] if start else None
        result = namespace.put(part, data[: len(part)], parent=parent)
        if result.num_accepted != len(part):
            raise SystemExit(f"store_figures: put declined blocks: {set(result.outcomes)}")
        while tier_counters(store)["disk"]["backlog_bytes"] > backlog_bytes_max:
            time.sleep(0.001)
    return keys


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
    keys = _namespace(store, SMALL_BLOCK_BYTES).keys(np.arange(num_blocks, dtype=np.int64))
    lookup = _namespace(store, SMALL_BLOCK_BYTES).lookup(keys, prefix=False)
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


def _print_table(figures: list[Figure]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for heading in ("figure", "value", "bound", "", "note"):
        table.add_column(heading, justify="right" if heading in ("value", "bound") else "left")
    for figure in figures:
        least = f"≥ {figure.at_least:g}" if figure.at_least is not None else ""
        most = f"≤ {figure.at_most:g}" if figure.at_most is not None else ""
        bound = " ".join(text for text in (least, most) if text)
        table.add_row(
            figure.name,
            f"{figure.value:,.3f} {figure.unit}".rstrip(),
            bound,
            ("good" if figure.is_good else "[bold red]MISSED[/bold red]") if bound else "",
            figure.note,
        )
    Console(width=None if sys.stdout.isatty() else 130).print(table, highlight=False)


@contextmanager
def _work_folder(parent: Path | None) -> Iterator[Path]:
    folder = (parent or OUT) / f"store-figures-{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
