"""`make demo`: a production trace through host memory and disk, with two restarts in the middle.

Usage: demo.py [--trace FILE] [--block-bytes N] [--out DIR]. Exit 1: a byte was wrong, or a tier
was not used. The replay runs in a process of its own, so that it can be killed; this one watches,
in one thread.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kvtier.bench.plot import Picture, draw_picture
from kvtier.bench.raw_device import RawRateLog, detect_medium
from kvtier.bench.replay import ReplayCounts
from kvtier.bench.replay_process import ReplayProcess, ReplayProcessError, ReplayTask
from kvtier.bench.report import GB, RawRates, TraceReport, tier_table
from kvtier.bench.trace import read_trace
from kvtier.errors import KvtierError
from kvtier.machine import memory_limit
from kvtier.units import format_bytes, parse_bytes

BENCH = Path(__file__).resolve().parent
OUT = BENCH / "out"
TRACE = BENCH / "data/mooncake_conversation_excerpt.jsonl.xz"
STORE_PREFIX = "demo-store-"

# The tiers' sizes in blocks: together half of the excerpt's distinct blocks, so that both evict.
HOST_BLOCKS = 4096
DISK_BLOCKS = 24576
BLOCK_BYTES_CHOICES = (256 << 10, 128 << 10, 64 << 10, 32 << 10, 16 << 10, 8 << 10, 4 << 10)
REPLAY_S_MAX = 60.0
"""As estimated from the bare disk: a slow disk gets smaller blocks, not a longer demo."""
MEMORY_SHARE_MAX = 1 / 6
DISK_SHARE_MAX = 1 / 2
REUSE_SHARE = 0.35
"""Share of block references that are read back: a little more than the excerpt's 31 %."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of the two tiers for a size of block."""

    block_bytes: int

    @property
    def host_bytes(self) -> int:
        return HOST_BLOCKS * self.block_bytes

    @property
    def disk_bytes(self) -> int:
        return DISK_BLOCKS * self.block_bytes


@dataclass(kw_only=True)
class Restart:
    """One interruption: how many blocks lay on disk before it, and were found after it."""

    name: str
    num_requests: int
    num_stored: int
    num_found: int = 0
    open_s: float = 0.0


@dataclass(kw_only=True)
class Run:
    """What was seen of the replay so far."""

    parts: list[ReplayCounts] = field(default_factory=list)
    total: ReplayCounts = field(default_factory=ReplayCounts)
    restarts: list[Restart] = field(default_factory=list)
    num_done: int = 0
    num_stored: int = 0


def main() -> int:
    arguments = _parse_arguments()
    console = Console() if sys.stdout.isatty() else Console(width=100)
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        with _store_folder(arguments.out) as folder:
            return _run_demo(arguments, folder, console)
    except (ReplayProcessError, KvtierError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run_demo(arguments: argparse.Namespace, folder: Path, console: Console) -> int:
    started_s = time.perf_counter()
    num_blocks = [len(request.hash_ids) for request in read_trace(arguments.trace)]
    narrator = Narrator(console, num_requests=len(num_blocks))
    narrator.stage(
        "The bare disk: reads and writes without kvtier, to know what it can do at most."
    )
    with RawRateLog.open(folder, block_bytes=BLOCK_BYTES_CHOICES[0]) as rates:
        rates.measure()
        raw = RawRates.of(rates.reads, rates.writes)
        sizes = choose_sizes(arguments.block_bytes, folder, raw, sum(num_blocks))
        narrator.detail(
            f"reads {raw.read_gb_per_s:.2f} GB/s, writes {raw.write_gb_per_s:.2f} GB/s. So: blocks "
            f"of {format_bytes(sizes.block_bytes)}, {format_bytes(sizes.host_bytes)} of memory, "
            f"{format_bytes(sizes.disk_bytes)} of disk"
        )
        task = ReplayTask(
            trace=str(arguments.trace),
            path=str(folder / "store"),
            host_bytes=sizes.host_bytes,
            disk_bytes=sizes.disk_bytes,
            block_bytes=sizes.block_bytes,
            first=0,
            stop=len(num_blocks),
        )
        run = _replay_with_restarts(task, narrator)
        rates.measure()
        raw = RawRates.of(rates.reads, rates.writes)
    medium = detect_medium(folder, read_gb_per_s=raw.read_gb_per_s)
    report = TraceReport(counts=run.total, block_bytes=sizes.block_bytes, raw=raw, medium=medium)
    print_result(report, run, console)
    draw(report, run, arguments.out / "demo.png", console)
    return judge(report, console, seconds=time.perf_counter() - started_s)


def choose_sizes(block_bytes: str | None, folder: Path, raw: RawRates, num_blocks: int) -> Sizes:
    """The largest blocks whose tiers fit memory and disk, and whose replay ends in time."""
    if block_bytes is not None:
        return Sizes(block_bytes=parse_bytes(block_bytes, "block-bytes"))
    status = os.statvfs(folder)
    host_bytes_max = memory_limit().limit_bytes * MEMORY_SHARE_MAX
    disk_bytes_max = status.f_bavail * status.f_frsize * DISK_SHARE_MAX
    for choice in BLOCK_BYTES_CHOICES:
        sizes = Sizes(block_bytes=choice)
        gigabytes = num_blocks * choice / GB
        seconds = gigabytes * (
            (1 - REUSE_SHARE) / raw.write_gb_per_s + REUSE_SHARE / raw.read_gb_per_s
        )
        is_small = sizes.host_bytes <= host_bytes_max and sizes.disk_bytes <= disk_bytes_max
        if is_small and seconds <= REPLAY_S_MAX:
            return sizes
    return Sizes(block_bytes=BLOCK_BYTES_CHOICES[-1])


def _replay_with_restarts(task: ReplayTask, narrator: Narrator) -> Run:
    """Restarts cleanly after a third of the requests, and kills the process after two."""
    run = Run()
    kill_at = max(2, task.stop * 2 // 3)
    with narrator.progress():
        narrator.stage(
            "The trace: each request takes the blocks of its prompt that are stored, which saves "
            "computing them again, and puts the rest. Every byte that comes back is checked."
        )
        with ReplayProcess(replace(task, restart_at=max(1, task.stop // 3))) as process:
            _follow(process, run, narrator, stop=kill_at)
            process.kill()
        run.restarts.append(
            Restart(name="kill -9", num_requests=run.num_done, num_stored=run.num_stored)
        )
        narrator.stage(
            "kill -9: the process dies in the middle of its work, as in a crash. A new one opens "
            "the same folder; what was on disk should be there, and nothing half-written."
        )
        with ReplayProcess(replace(task, first=run.num_done)) as process:
            _follow(process, run, narrator, stop=None)
    return run


def _follow(process: ReplayProcess, run: Run, narrator: Narrator, *, stop: int | None) -> None:
    """Takes in what the process reports, until `stop` requests are done or until it ends."""
    for event in process.events():
        if event.name == "opened" and run.restarts:
            restart = run.restarts[-1]
            restart.open_s, restart.num_found = event.open_s, event.num_found
            narrator.detail(
                f"open again after {event.open_s * 1000:.0f} ms; {event.num_found:,} blocks found, "
                f"{restart.num_stored:,} were last seen on disk"
            )
        elif event.name == "closed" and stop is not None:
            run.restarts.append(
                Restart(name="clean", num_requests=run.num_done, num_stored=run.num_stored)
            )
            narrator.stage(
                "A clean restart: the store is closed and opened again, as when a server is "
                "updated. Its cache should not start from nothing."
            )
        elif event.name == "progress":
            run.num_done, run.num_stored = event.num_done, event.num_stored
            run.parts.append(event.counts)
            run.total.add(event.counts)
            narrator.update(run)
            if stop is not None and run.num_done >= stop:
                return


class Narrator:
    """Says what happens: sentences always, a moving bar only on a terminal."""

    def __init__(self, console: Console, *, num_requests: int) -> None:
        self._console = console
        self._num_stages = 0
        self._bar = Progress(
            TextColumn("  "),
            BarColumn(),
            TextColumn("{task.completed:,}/{task.total:,} requests"),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=num_requests)

    def stage(self, text: str) -> None:
        self._num_stages += 1
        self._console.print(f"\n[bold]{self._num_stages}.[/bold] {text}", highlight=False)

    def detail(self, text: str) -> None:
        self._console.print(f"   {text}", style="dim", highlight=False)

    def progress(self) -> Progress:
        return self._bar

    def update(self, run: Run) -> None:
        num_hits = run.total.host.hits + run.total.disk.hits
        share = num_hits / max(1, run.total.blocks)
        self._bar.update(
            self._task, completed=run.num_done, description=f"{share:.1%} of blocks delivered"
        )


def print_result(report: TraceReport, run: Run, console: Console) -> None:
    counts = report.counts
    console.print("\n[bold]Result[/bold]")
    console.print(tier_table(report))
    restarts = Table()
    for heading in ("restart", "after requests", "time to open", "on disk before", "found after"):
        restarts.add_column(heading, justify="left" if heading == "restart" else "right")
    for restart in run.restarts:
        restarts.add_row(
            restart.name,
            f"{restart.num_requests:,}",
            f"{restart.open_s * 1000:.0f} ms",
            f"{restart.num_stored:,}",
            f"{restart.num_found:,}",
        )
    console.print(restarts)
    facts = Table(show_header=False)
    facts.add_column()
    facts.add_column(justify="right")
    raw = report.raw
    rows = {
        "block references delivered": f"{report.hit_rate:.1%} of {counts.blocks:,}",
        "CPU seconds per GB got or put": f"{report.cpu_s_per_gb or 0:.3f}",
        "written to disk per byte offered": f"{report.written_per_offered or 0:.3f}",
        f"bare disk ({report.medium}): read / write": (
            f"{raw.read_gb_per_s:.2f} / {raw.write_gb_per_s:.2f} GB/s" if raw else "-"
        ),
        "waited for the disk to take the writes": f"{counts.waited_s:.1f} s of {counts.wall_s:.1f}",
        "wrong bytes": f"{counts.wrong_bytes:,}",
    }
    for name, value in rows.items():
        facts.add_row(name, value)
    console.print(facts, highlight=False)


def draw(report: TraceReport, run: Run, path: Path, console: Console) -> None:
    """A machine without matplotlib still gets the tables."""
    picture = Picture(
        parts=run.parts,
        total=run.total,
        raw=report.raw or RawRates(read_gb_per_s=0, write_gb_per_s=0),
        interruptions=[(restart.num_requests, restart.name) for restart in run.restarts],
    )
    try:
        draw_picture(picture, path)
    except ImportError as error:
        console.print(f"no picture: {error}")
        return
    console.print(f"picture: {os.path.relpath(path)}", highlight=False)


def judge(report: TraceReport, console: Console, *, seconds: float) -> int:
    counts = report.counts
    faults = []
    if counts.wrong_bytes:
        faults.append(f"{counts.wrong_bytes:,} wrong bytes in {counts.wrong_blocks:,} blocks")
    if counts.host.hits == 0:
        faults.append("the host tier delivered nothing")
    if counts.disk.bytes_read == 0:
        faults.append("nothing was read from the disk tier")
    for fault in faults:
        console.print(f"[bold red]FAILED:[/bold red] {fault}")
    if not faults:
        checked_gb = (counts.host.hits + counts.disk.hits) * report.block_bytes / GB
        console.print(
            f"All {checked_gb:.1f} GB that came back were right, through two restarts. "
            f"{seconds:.0f} s in all.",
            highlight=False,
        )
    return 1 if faults else 0


@contextmanager
def _store_folder(out: Path) -> Iterator[Path]:
    """A folder of this run; those that killed runs left behind go first."""
    for left in out.glob(f"{STORE_PREFIX}*"):
        process_id = left.name.removeprefix(STORE_PREFIX)
        if not process_id.isdecimal() or not Path("/proc", process_id).exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = out / f"{STORE_PREFIX}{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Replays a request trace through both tiers.")
    parser.add_argument("--trace", type=Path, default=TRACE, help="another trace, or the whole one")
    parser.add_argument("--block-bytes", metavar="N", help="instead of what suits this machine")
    parser.add_argument("--out", type=Path, default=OUT, help="where the store and picture go")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
