"""`kvtier bench serve`: makes the plan, measures, shows what there is. One event loop."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import kvtier
from kvtier.bench.figure import busy_note, load_average
from kvtier.bench.output_files import check_output_files
from kvtier.bench.serve.engine_process import default_python
from kvtier.bench.serve.serve_mode import DEFAULT_MODES, MODES, TierSizes
from kvtier.bench.serve.serve_plan import (
    ServePlan,
    find_vocabulary_tokens,
    parse_settings,
    parse_urls,
)
from kvtier.bench.serve.serve_report import ServeReport
from kvtier.bench.serve.serve_run import measure_modes
from kvtier.bench.serve.serve_table import print_serve_report
from kvtier.bench.serve.sweep import Sweep
from kvtier.bench.serve.trace_prompts import TraceChoice
from kvtier.bench.serve.workload import DEFAULTS, TRACE, WorkloadShape
from kvtier.errors import ConfigError
from kvtier.file_system import find_concerns, find_file_system
from kvtier.machine import num_cpus
from kvtier.units import parse_bytes

EXIT_INTERRUPTED = 130


def run_serve(arguments: argparse.Namespace) -> int:
    """Runs the command; returns its exit code. Raises KvtierError for what can't be run."""
    plan = make_plan(arguments)
    plan.check()
    check_output_files(output=arguments.output, plot=arguments.plot)
    report = ServeReport(
        surroundings=_surroundings(plan),
        axis=plan.sweep.axis if plan.sweep else None,
        is_exact=plan.is_exact,
        notes=_notes(plan),
    )

    def keep() -> None:
        if arguments.output is not None:
            Path(arguments.output).write_text(json.dumps(report.to_json()) + "\n", encoding="utf-8")

    load_before = load_average()
    with _work_folder(plan.folder, report) as work:
        try:
            asyncio.run(_measure(plan, report, work, keep))
        except (KeyboardInterrupt, asyncio.CancelledError):
            report.is_interrupted = True
    note = busy_note(load_before)
    if note:
        report.notes.append(note.removeprefix("note: "))
    keep()
    _show(report, is_json=arguments.json, plot=arguments.plot)
    if report.is_interrupted:
        return EXIT_INTERRUPTED
    return 1 if report.faults else 0


def make_plan(arguments: argparse.Namespace) -> ServePlan:
    """Returns what the arguments ask for, not yet checked together. Raises ConfigError."""
    urls = parse_urls(arguments.url or ())
    return ServePlan(
        modes=_find_modes(arguments.modes, tuple(urls)),
        urls=urls,
        model=arguments.model,
        shape=_make_shape(arguments),
        concurrency=arguments.concurrency,
        num_runs=arguments.runs,
        num_warm_up=max(0, arguments.warm_up),
        timeout_s=arguments.timeout_s,
        start_s=arguments.start_s,
        sweep=Sweep.parse(arguments.sweep) if arguments.sweep else None,
        sizes=TierSizes(
            host_bytes=parse_bytes(arguments.host_bytes, "host-bytes"),
            hybrid_host_bytes=parse_bytes(
                arguments.hybrid_host_bytes or arguments.host_bytes, "hybrid-host-bytes"
            ),
            disk_bytes=parse_bytes(arguments.disk_bytes, "disk-bytes"),
            disk_host_bytes=parse_bytes(arguments.disk_host_bytes, "disk-host-bytes"),
            settings=parse_settings(arguments.setting or ()),
        ),
        folder=arguments.path,
        python=arguments.python or default_python(),
        block_tokens=arguments.block_tokens,
        device_tokens=arguments.device_tokens,
        serve_arguments=tuple(arguments.serve_arguments),
    )


def _make_shape(arguments: argparse.Namespace) -> WorkloadShape:
    asked = {
        "num_prompts": arguments.prompts,
        "num_visits": arguments.visits,
        "input_tokens": arguments.input_tokens,
        "output_tokens": arguments.output_tokens,
        "vocabulary_tokens": arguments.vocabulary_tokens or find_vocabulary_tokens(arguments.model),
        "seed": arguments.seed,
    }
    shape = dataclasses.replace(
        DEFAULTS[arguments.workload],
        **{name: value for name, value in asked.items() if value is not None},
    )
    if arguments.workload != TRACE:
        if arguments.trace is not None:
            raise ConfigError("trace: is read with --workload trace only")
        return shape
    if arguments.trace is None:
        raise ConfigError("workload: trace needs a file; give --trace FILE")
    choice = TraceChoice(
        path=arguments.trace,
        block_tokens=arguments.trace_block_tokens,
        speed=arguments.trace_speed,
    )
    return dataclasses.replace(shape, trace=choice)


def _find_modes(text: str | None, with_urls: tuple[str, ...]) -> tuple[str, ...]:
    if text is None:
        return with_urls or DEFAULT_MODES
    modes = tuple(dict.fromkeys(it.strip() for it in text.split(",") if it.strip()))
    for mode in modes:
        if mode not in MODES:
            raise ConfigError(f"modes: unknown mode {mode!r}; there are {', '.join(MODES)}")
        if with_urls and mode not in with_urls:
            raise ConfigError(f"modes: {mode} has no --url; give --url {mode}=URL, or leave it out")
    if not modes:
        raise ConfigError(f"modes: name at least one of {', '.join(MODES)}")
    return modes


def _notes(plan: ServePlan) -> list[str]:
    if plan.folder is None:
        return []
    return find_concerns(plan.folder, find_file_system(plan.folder))


def _surroundings(plan: ServePlan) -> dict[str, object]:
    shape = dataclasses.asdict(plan.shape)
    return {
        "version": kvtier.__version__,
        "num_cpus": num_cpus(),
        "medium": find_file_system(plan.folder).medium if plan.folder else None,
        "model": plan.model,
        "workload": shape,
        "concurrency": plan.concurrency,
        "num_warm_up": plan.num_warm_up,
        "timeout_s": plan.timeout_s,
        "device_tokens": plan.device_tokens,
        "block_tokens": plan.block_tokens,
        "sizes": {**dataclasses.asdict(plan.sizes), "settings": dict(plan.sizes.settings)},
        "urls": {mode: str(url) for mode, url in plan.urls.items()},
        "serve_arguments": list(plan.serve_arguments),
    }


async def _measure(
    plan: ServePlan, report: ServeReport, work: Path, keep: Callable[[], None]
) -> None:
    task = asyncio.current_task()
    assert task is not None
    # Without it vLLM would outlive a bench that was told to end.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await measure_modes(plan, report, work, keep)


@contextmanager
def _work_folder(parent: str | None, report: ServeReport) -> Iterator[Path]:
    """A folder of this run for logs and disks; logs stay where something failed."""
    if parent is not None:
        with _named_os_errors(parent):
            Path(parent).mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"kvtier-serve-{os.getpid()}-", dir=parent))
    try:
        yield work
    finally:
        if not any(result.error for result in report.results):
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _named_os_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"path: cannot make {path}: {error.strerror}") from error


def _show(report: ServeReport, *, is_json: bool, plot: str | None) -> None:
    if is_json:
        print(json.dumps(report.to_json()))
        for fault in report.faults:
            print(f"kvtier bench serve: {fault}", file=sys.stderr)
    else:
        print_serve_report(report)
    if plot is not None and report.results:
        from kvtier.bench.serve.serve_plot import draw_modes

        draw_modes(report, Path(plot))
