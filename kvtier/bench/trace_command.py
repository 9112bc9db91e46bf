"""`kvtier bench trace`: opens a store, replays a trace against it, reports. One thread."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import kvtier
from kvtier.bench.raw_device import RawRateLog, detect_medium
from kvtier.bench.replay import Replay, ReplayCounts, tier_counters
from kvtier.bench.report import GOOD, RawRates, TraceReport, print_report
from kvtier.bench.trace import Request, read_trace
from kvtier.units import parse_bytes

if TYPE_CHECKING:
    from kvtier import BlockStore

_MODEL = "kvtier-bench-trace"


def run_trace(
    *,
    trace: str,
    path: str | None,
    host_bytes: str,
    disk_bytes: str,
    block_bytes: str,
    num_requests_max: int | None,
    is_paced: bool,
    is_json: bool,
) -> int:
    """Runs the command; returns its exit code. Raises KvtierError for what can't be run."""
    requests = read_trace(trace, num_requests_max=num_requests_max)
    size_bytes = parse_bytes(block_bytes, "block-bytes")
    if disk_bytes != "auto" and parse_bytes(disk_bytes, "disk-bytes") == 0:
        path = None
    rates: RawRateLog | None = None
    with ExitStack() as stack, _named_os_errors(path):
        store = stack.enter_context(
            kvtier.open(path, host_bytes=host_bytes, disk_bytes=disk_bytes)
            if path
            else kvtier.open(None, host_bytes=host_bytes)
        )
        _note_old_blocks(store, path)
        if path is not None:
            rates = stack.enter_context(RawRateLog.open(path, block_bytes=size_bytes))
            rates.measure()
        counts = _replay(store, requests, size_bytes, is_paced=is_paced, is_shown=not is_json)
        if rates is not None:
            rates.measure()
    raw = RawRates.of(rates.reads, rates.writes) if rates else None
    medium = detect_medium(path, read_gb_per_s=raw.read_gb_per_s) if path and raw else None
    report = TraceReport(counts=counts, block_bytes=size_bytes, raw=raw, medium=medium)
    _show(report, path, is_json=is_json)
    return 0 if report.verdict == GOOD else 1


@contextmanager
def _named_os_errors(path: str | None) -> Iterator[None]:
    try:
        yield
    except kvtier.KvtierError:
        raise
    except OSError as error:
        raise kvtier.TierIOError(
            error.errno, f"cannot measure the device of {path}: {error.strerror}"
        ) from error


def _replay(
    store: BlockStore,
    requests: Sequence[Request],
    block_bytes: int,
    *,
    is_paced: bool,
    is_shown: bool,
) -> ReplayCounts:
    from rich.progress import Progress

    # A salt of its own: blocks that an earlier run left in the directory are not this run's hits.
    namespace = store.namespace(
        model=_MODEL, block_bytes=block_bytes, fingerprint="none", salt=uuid.uuid4().hex
    )
    replay = Replay(store, namespace, requests, is_paced=is_paced)
    total = ReplayCounts()
    with Progress(disable=not (is_shown and sys.stdout.isatty()), transient=True) as progress:
        task = progress.add_task("replaying", total=len(requests))

        def add(num_done: int, counts: ReplayCounts) -> None:
            total.add(counts)
            progress.update(task, completed=num_done)

        replay.take_counts()  # Making the keys is not part of the replay.
        replay.run(report=add)
    # What still waits for the disk belongs to what was offered.
    store.flush()
    total.add(replay.take_counts())
    return total


def _note_old_blocks(store: BlockStore, path: str | None) -> None:
    num_old = tier_counters(store)["disk"]["blocks"]
    if num_old:
        print(
            f"note: {path} already holds {num_old:,} blocks. They take room and change what is "
            "admitted; for figures that compare, use an empty directory.",
            file=sys.stderr,
        )


def _show(report: TraceReport, path: str | None, *, is_json: bool) -> None:
    if is_json:
        print(json.dumps(report.to_json()))
    else:
        from rich.console import Console

        print_report(report, Console())
        if path is not None:
            print(f"The blocks stay in {path}; `kvtier wipe {path}` removes them.")
    if report.verdict != GOOD:
        print(f"kvtier bench trace: {report.verdict}", file=sys.stderr)
