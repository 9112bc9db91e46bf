"""`kvtier bench disk`: opens a store, measures it and the bare device in pairs, reports."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kvtier.bench.block_source import (
    BenchmarkError,
    BlockSource,
    bench_namespace,
    fresh_salt,
)
from kvtier.bench.disk_pairs import DiskPairs
from kvtier.bench.disk_report import GOOD, NO_DISK_TRAFFIC, DiskReport, rate_of
from kvtier.bench.figure import busy_note, load_average, print_figures
from kvtier.bench.open_slots import find_slot_bytes
from kvtier.bench.raw_device import detect_medium
from kvtier.bench.raw_transfer import open_raw_transfers
from kvtier.bench.simulated_disk import PaperDisk, parse_paper_disk
from kvtier.bench.timed_bytes import TimedBytes
from kvtier.block_store import open_store
from kvtier.errors import ConfigError, TierIOError
from kvtier.units import MIB, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvtier import BlockStore

NUM_PAIRS_MIN = 7
# A pair reads twice and writes four times, store and bare device together, reads once more for the
# CPU reference, and once more each way by bare loops; making segments anew and checking bytes comes
# on top.
_PASSES_A_PAIR = 9
_NUM_BYTES_MAX = 1 << 30
_NUM_BLOCKS_MIN = 16
_DEPTH_MAX = 64
_IN_FLIGHT_BYTES = 4 * MIB
_THREADS = 8
_TRIAL_BYTES = 64 * MIB


@dataclass(frozen=True, kw_only=True)
class DiskTask:
    """What is to be measured. Zeros stand for "as fits"."""

    path: Path
    block_bytes: int
    seconds: float
    host_bytes: int = 0
    num_bytes: int = 0
    depth: int = 0
    io: str = "auto"
    paper: PaperDisk | None = None


def run_disk(
    *,
    path: str,
    block_bytes: str,
    seconds: float,
    host_bytes: str,
    num_bytes: str,
    depth: int,
    io: str,
    simulate: str | None,
    is_json: bool,
) -> int:
    """Runs the command; returns its exit code. Raises KvtierError for what can't be run."""
    task = DiskTask(
        path=Path(path),
        block_bytes=parse_bytes(block_bytes, "block-bytes"),
        seconds=seconds,
        host_bytes=parse_bytes(host_bytes, "host-bytes"),
        num_bytes=parse_bytes(num_bytes, "bytes"),
        depth=depth,
        io=io,
        paper=parse_paper_disk(simulate) if simulate else None,
    )
    if task.block_bytes < 1:
        raise ConfigError("block-bytes: must be at least 1")
    load_before = load_average()
    try:
        report = measure_disk(task)
    except BenchmarkError as error:
        print(f"kvtier bench disk: {error}", file=sys.stderr)
        return 1
    _show(report, is_json=is_json)
    note = busy_note(load_before)
    if note:
        print(note, file=sys.stderr)
    return 0 if report.verdict == GOOD else 1


def measure_disk(task: DiskTask) -> DiskReport:
    """Measures, and removes what was put. Raises BenchmarkError, KvtierError.

    Another store's blocks in the directory are refused: clearing would remove them.
    """
    with _named_os_errors(task.path):
        num_bytes = task.num_bytes or _fitting_bytes(task)
        num_blocks = max(_NUM_BLOCKS_MIN, num_bytes // task.block_bytes)
        with _open(task, num_blocks) as store:
            namespace = bench_namespace(store, task.block_bytes, salt=fresh_salt())
            source = BlockSource(namespace, num_blocks)
            try:
                return _measure(task, store, source)
            finally:
                store.clear()


def _measure(task: DiskTask, store: BlockStore, source: BlockSource) -> DiskReport:
    mode = _mode(store)
    backlog_bytes_max = task.host_bytes // 4 or None
    source.put_all(store, backlog_bytes_max=backlog_bytes_max)
    store.flush(300)
    op_bytes = find_slot_bytes(task.path)
    depth = task.depth or fitting_depth(op_bytes, mode.get("io", ""))
    num_buffers = max(depth, min(source.num_blocks, 2 * _IN_FLIGHT_BYTES // op_bytes))
    with open_raw_transfers(depth=depth, op_bytes=op_bytes, num_buffers=num_buffers) as transfers:
        pairs = DiskPairs(store, task.path, source, transfers)
        if task.paper:
            _run_on_paper(task, task.paper, pairs, depth)
        else:
            _run_pairs(task, pairs)
        raw_engine = "paper" if task.paper else transfers[0].name
    return DiskReport(
        block_bytes=task.block_bytes,
        num_bytes=source.num_bytes,
        gets=pairs.gets,
        fresh_puts=pairs.fresh_puts,
        overwriting_puts=pairs.overwriting_puts,
        verified_reads=pairs.verified_reads,
        bare_gets=pairs.bare_gets,
        bare_puts=pairs.bare_puts,
        wrong_bytes=pairs.wrong_bytes,
        depth=depth,
        raw_engine=raw_engine,
        io=mode.get("io", ""),
        direct=mode.get("direct", "") if pairs.is_direct else "off",
        medium="simulated"
        if task.paper
        else detect_medium(task.path, read_gb_per_s=rate_of(pairs.gets.raw)),
    )


def _run_pairs(task: DiskTask, pairs: DiskPairs) -> None:
    deadline_s = time.monotonic() + task.seconds
    with pairs.open_raw_files() as (written_fd, fresh_fd):
        pair_index = 0
        while pair_index < NUM_PAIRS_MIN or time.monotonic() < deadline_s:
            pairs.run_pair(pair_index, written_fd, fresh_fd)
            pair_index += 1


def _run_on_paper(task: DiskTask, paper: PaperDisk, pairs: DiskPairs, depth: int) -> None:
    def limit(*, is_write: bool) -> TimedBytes:
        rate = paper.gb_per_s(is_write=is_write, op_bytes=task.block_bytes, depth=depth)
        num_bytes = pairs.source.num_bytes
        return TimedBytes(num_bytes=num_bytes, seconds=num_bytes / rate / 1e9)

    deadline_s = time.monotonic() + task.seconds
    while len(pairs.gets.store) < NUM_PAIRS_MIN or time.monotonic() < deadline_s:
        pairs.gets.add(pairs.get_all(), limit(is_write=False))
        pairs.overwriting_puts.add(pairs.put_over(), limit(is_write=True))
        pairs.fresh_puts.add(pairs.put_fresh(), limit(is_write=True))


def fitting_depth(op_bytes: int, io: str) -> int:
    """As many ops at once as the store's engine runs: threads, or a ring with its window full."""
    depth_max = _THREADS if io.startswith("threads") else _DEPTH_MAX
    return max(2, min(depth_max, _IN_FLIGHT_BYTES // op_bytes))


def _fitting_bytes(task: DiskTask) -> int:
    """As much as NUM_PAIRS_MIN pairs can move in the time, by a short trial of this very disk.

    More than a host tier holds, in any case: else nothing would come from disk.
    """
    least_bytes = max(_NUM_BLOCKS_MIN * task.block_bytes, 2 * task.host_bytes)
    if task.paper:
        slower = min(task.paper.read_bytes_per_s, task.paper.write_bytes_per_s)
        by_time = int(task.seconds * slower / (NUM_PAIRS_MIN * 3))
        return max(least_bytes, min(by_time, _NUM_BYTES_MAX))
    num_blocks = max(1, _TRIAL_BYTES // task.block_bytes)
    with _open(task, num_blocks) as store:
        namespace = bench_namespace(store, task.block_bytes, salt=fresh_salt())
        source = BlockSource(namespace, num_blocks)
        started_s = time.perf_counter()
        source.put_all(store, backlog_bytes_max=task.host_bytes // 4 or None)
        store.flush(300)
        rate = source.num_bytes / (time.perf_counter() - started_s)
        store.clear()
    by_time = int(task.seconds * rate / (NUM_PAIRS_MIN * _PASSES_A_PAIR))
    return max(least_bytes, min(by_time, _NUM_BYTES_MAX))


@contextmanager
def _open(task: DiskTask, num_blocks: int) -> Iterator[BlockStore]:
    # Room for what is put, rounded slots, tables, and a segment of each kind half empty.
    slot_bytes = -(-task.block_bytes // 4096) * 4096
    disk_bytes = int(1.25 * num_blocks * slot_bytes) + 256 * MIB
    arguments = {
        "path": task.path,
        "host_bytes": task.host_bytes,
        "disk_bytes": disk_bytes,
        "io": task.io,
        "staging_bytes": max(64 * MIB, 4 * slot_bytes),
    }
    simulated_disk = task.paper.core_option() if task.paper else None
    with open_store(arguments, None, simulated_disk=simulated_disk) as it:
        disk = cast("Mapping[str, Mapping[str, int]]", it.stats()["tiers"])["disk"]
        if disk["blocks"]:
            raise ConfigError(
                f"path: {task.path} holds {disk['blocks']} blocks, which measuring would remove; "
                "choose an empty folder"
            )
        yield it


def _mode(store: BlockStore) -> dict[str, str]:
    tiers = cast("Mapping[str, Mapping[str, Mapping[str, str]]]", store.stats()["tiers"])
    return dict(tiers["disk"]["mode"])


def _show(report: DiskReport, *, is_json: bool) -> None:
    if is_json:
        print(json.dumps(report.to_json()))
    else:
        print_figures(report.figures())
        print("\n".join(report.lines()))
    if report.verdict == NO_DISK_TRAFFIC:
        print(
            "kvtier bench disk: no disk traffic: the disk tier moved no byte, so nothing of it was "
            "measured. Give the host tier less room (--host-bytes), or more data (--bytes).",
            file=sys.stderr,
        )
    elif report.verdict != GOOD:
        print(f"kvtier bench disk: {report.verdict}: {report.wrong_bytes:,}", file=sys.stderr)


@contextmanager
def _named_os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except TierIOError:
        raise
    except OSError as error:
        raise TierIOError(
            error.errno, f"cannot measure the device of {path}: {error.strerror}"
        ) from error
