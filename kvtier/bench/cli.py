"""Arguments of `kvtier bench …`; what a command needs is imported when it runs. Stateless."""

from __future__ import annotations

import argparse


def add_bench_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `bench` with its commands; each sets `run`: a function of the arguments to exit code."""
    bench = subparsers.add_parser("bench", help="measure the store on this machine")
    commands = bench.add_subparsers(dest="bench_command", metavar="COMMAND", required=True)
    _add_trace_parser(commands)


def _add_trace_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "trace",
        help="replay a request trace with real bytes",
        description="Replays a request trace (one JSON object with 'hash_ids' a line; .xz and .gz "
        "are read too) through the store with real bytes, and verifies every byte it gets back. "
        "Sizes take units: 64MiB, 8GiB. Exit 1: wrong bytes, or no disk traffic.",
    )
    parser.add_argument("--trace", required=True, metavar="FILE", help="the trace to replay")
    parser.add_argument("--path", metavar="DIR", help="directory of the disk tier; none without it")
    parser.add_argument("--host-bytes", default="auto", metavar="N", help="size of the host tier")
    parser.add_argument("--disk-bytes", default="auto", metavar="N", help="cap of the disk tier")
    parser.add_argument("--block-bytes", default="1MiB", metavar="N", help="bytes of each block")
    parser.add_argument("--requests", type=_positive, metavar="N", help="replay the first N only")
    parser.add_argument(
        "--unpaced",
        action="store_true",
        help="do not wait for room in the disk's backlog: what comes too fast is not kept on disk",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run_trace)


def _run_trace(arguments: argparse.Namespace) -> int:
    from kvtier.bench.trace_command import run_trace

    return run_trace(
        trace=arguments.trace,
        path=arguments.path,
        host_bytes=arguments.host_bytes,
        disk_bytes=arguments.disk_bytes,
        block_bytes=arguments.block_bytes,
        num_requests_max=arguments.requests,
        is_paced=not arguments.unpaced,
        is_json=arguments.json,
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value
