"""Measures modes one after the other: starts or finds a server, warms it up, runs the workload.

Used from one event loop.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from kvtier.bench.serve.completion import Client
from kvtier.bench.serve.engine_process import EngineProcess, engine_environment, find_packages
from kvtier.bench.serve.serve_figures import run_figures
from kvtier.bench.serve.serve_mode import DISK_MODES, ModeLaunch, make_launch
from kvtier.bench.serve.serve_plan import Point, ServePlan
from kvtier.bench.serve.serve_report import ModeResult, ServeReport
from kvtier.bench.serve.settling import Settler
from kvtier.bench.serve.workload import make_sessions, make_warm_up
from kvtier.bench.serve.workload_run import WorkloadRecord, run_workload
from kvtier.http_stream import ServerError, ServerUrl, fetch_text

_MODEL_S_MAX = 30.0
_COMMAND = ("-m", "vllm.entrypoints.cli.main", "serve")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server:
    """A server that answers; `engine` is None of one that was not started here."""

    url: ServerUrl
    engine: EngineProcess | None


async def measure_modes(
    plan: ServePlan, report: ServeReport, work: Path, kept: Callable[[], None]
) -> None:
    """Adds results to the report; calls `kept` after each. `work`: a folder for logs and disks."""
    for mode in plan.modes:
        points = list(plan.points)
        while points:
            # Points that the engine need not be started anew for.
            together = [it for it in points if it.engine_key() == points[0].engine_key()]
            points = points[len(together) :]
            await _measure_on_one_engine(plan, report, mode, together, work, kept)


async def _measure_on_one_engine(
    plan: ServePlan,
    report: ServeReport,
    mode: str,
    points: list[Point],
    work: Path,
    kept: Callable[[], None],
) -> None:
    results = [ModeResult(mode=mode, point=point.value) for point in points]
    report.results += results
    try:
        async with _open_server(plan, mode, points[0], work) as server:
            model = await _find_model(server.url, plan.model)
            client = Client(server=server.url, model=model, timeout_s=plan.timeout_s)
            for point, result in zip(points, results, strict=True):
                await _measure_point(plan, client, server, point, result)
                kept()
                if server.engine is not None and server.engine.describe_end() is not None:
                    break
    except ServerError as error:
        for result in results:
            if not result.runs and result.error is None:
                result.error = str(error)
        kept()


async def _measure_point(
    plan: ServePlan, client: Client, server: Server, point: Point, result: ModeResult
) -> None:
    """Warms up and runs; what is whole stays when a later run fails."""
    try:
        if plan.num_warm_up:
            warm_up = make_warm_up(point.shape, plan.num_warm_up, point.number)
            # Starting may compile or allocate, for longer than any answer may take.
            patient = dataclasses.replace(client, timeout_s=max(plan.start_s, plan.timeout_s))
            record = await run_workload(patient, warm_up, concurrency=point.concurrency)
            _raise_error(record, server, "warm-up")
        settler = Settler(client)
        before = await settler.settle()
        for run in range(plan.num_runs):
            # One engine may serve several points: prompts come again within a run only.
            sessions = make_sessions(point.shape, point.number * plan.num_runs + run)
            record = await run_workload(client, sessions, concurrency=point.concurrency)
            _say(f"{result.mode}: run {run + 1} of {plan.num_runs}: {record.seconds:.1f} s")
            _raise_error(record, server, f"run {run + 1}")
            after = await settler.settle()
            counted = after.since(before) if after and before else None
            memory_bytes = server.engine.memory_bytes() if server.engine else None
            result.add_run(run, record)
            result.runs.append(run_figures(record, counted, memory_bytes))
            if counted is not None:
                result.counted.append(counted)
            before = after
    except ServerError as error:
        ended = server.engine.describe_end() if server.engine else None
        result.error = f"{error}; {ended}" if ended and ended not in str(error) else str(error)


def _raise_error(record: WorkloadRecord, server: Server, what: str) -> None:
    if record.error is not None:
        num_whole = record.num_requests - record.num_missing
        raise ServerError(
            f"{what} ended after {num_whole} of {record.num_requests} requests: {record.error}"
        )


@asynccontextmanager
async def _open_server(
    plan: ServePlan, mode: str, point: Point, work: Path
) -> AsyncIterator[Server]:
    if plan.urls:
        yield Server(url=plan.urls[mode], engine=None)
        return
    sizes = dataclasses.replace(plan.sizes, num_io_threads=point.num_io_threads)
    disk_folder = work / f"{mode}-disk"
    launch = make_launch(mode, sizes, disk_folder)
    await _check_packages(plan, launch)
    _say(f"{mode}: starting vLLM; its log: {work / mode}.log")
    try:
        async with EngineProcess.start(
            make_command(plan, launch, point),
            environment={**engine_environment(), **launch.environment},
            log=work / f"{mode}.log",
        ) as engine:
            await engine.wait_until_ready(plan.start_s)
            yield Server(url=engine.url, engine=engine)
    finally:
        if mode in DISK_MODES:
            shutil.rmtree(disk_folder, ignore_errors=True)


def make_command(plan: ServePlan, launch: ModeLaunch, point: Point) -> list[str]:
    """Returns the command without host and port; what the user gave comes last, and wins."""
    assert plan.model is not None
    command = [plan.python, *_COMMAND, plan.model, "--block-size", str(plan.block_tokens)]
    command += ["--max-model-len", str(plan.context_tokens), "--enable-prefix-caching"]
    if point.device_tokens is not None:
        # One block is vLLM's own and never used.
        num_blocks = -(-point.device_tokens // plan.block_tokens) + 1
        command += ["--num-gpu-blocks-override", str(num_blocks)]
    return [*command, *launch.arguments, *plan.serve_arguments]


async def _check_packages(plan: ServePlan, launch: ModeLaunch) -> None:
    needed = ["vllm", *([launch.needs] if launch.needs else [])]
    missing = set(needed) - await find_packages(plan.python, needed)
    if missing:
        raise ServerError(
            f"{plan.python} has no {', '.join(sorted(missing))}; install it there, or name "
            "another Python with --python"
        )


async def _find_model(url: ServerUrl, wanted: str | None) -> str:
    """Returns the name to ask for. Raises ServerError when the server has no such model."""
    status, text = await fetch_text(url, "/v1/models", timeout_s=_MODEL_S_MAX)
    try:
        served = [str(it["id"]) for it in json.loads(text)["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(
            f"{url}/v1/models is no list of models (HTTP {status}): is the server compatible with "
            "OpenAI's?"
        ) from error
    if not served:
        raise ServerError(f"{url} serves no model")
    if wanted is None:
        return served[0]
    if wanted not in served:
        raise ServerError(f"{url} has no model {wanted!r}; it serves {', '.join(served)}")
    return wanted


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
