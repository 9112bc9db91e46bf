"""Arguments of `kvtier bench …`; what a command needs is imported when it runs. Stateless."""

from __future__ import annotations

import argparse

from kvtier.bench.argument_types import positive, seconds
from kvtier.bench.serve.arguments import add_serve_parser


def add_bench_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `bench` with its commands; each sets `run`: a function of the arguments to exit code."""
    bench = subparsers.add_parser("bench", help="measure the store on this machine")
    commands = bench.add_subparsers(dest="bench_command", metavar="COMMAND", required=True)
    _add_copy_parser(commands)
    _add_disk_parser(commands)
    _add_store_parser(commands)
    _add_trace_parser(commands)
    add_serve_parser(commands)


def _add_copy_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "copy",
        help="transfers between GPU and host, each beside one large copy",
        description="Measures saves and loads between a GPU and page-locked host memory by size "
        "and number of fragments, direction and method, in turns with one large copy, and compares "
        "every byte. Without a GPU it runs on the host and says why. Exit 1: wrong bytes, or a "
        "bound is missed.",
    )
    parser.add_argument(
        "--device",
        default="auto",
        metavar="D",
        help="cuda:0, host (default: a GPU if there is one)",
    )
    parser.add_argument("--only", nargs="+", metavar="PART", help="some parts only")
    parser.add_argument(
        "--bytes", default="0", metavar="N", help="data of one case (default: what fits)"
    )
    parser.add_argument("--quick", action="store_true", help="less data: to try it out")
    parser.add_argument("--output", metavar="FILE", help="also write the JSON object to FILE")
    parser.add_argument("--plot", metavar="FILE", help="also draw the sweep into FILE (.png)")
    parser.add_argument("--commit", metavar="TEXT", help="commit to name, where git cannot")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run_copy)


def _add_disk_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "disk",
        help="put and get through the store against the bare device",
        description="Measures gets and puts of a store against the bare device in pairs: the same "
        "slots of the same files are read past the page cache, and files in the same state are "
        "written. Prints medians and their ratio. Exit 1: wrong bytes, or no disk traffic.",
    )
    parser.add_argument("--path", required=True, metavar="DIR", help="an empty folder to use")
    parser.add_argument("--block-bytes", default="1MiB", metavar="N", help="bytes of each block")
    parser.add_argument(
        "--seconds", type=seconds, default=20.0, metavar="S", help="measuring time in total"
    )
    parser.add_argument(
        "--bytes", default="0", metavar="N", help="data of one pass (default: what fits the time)"
    )
    parser.add_argument("--host-bytes", default="0", metavar="N", help="host tier (default: none)")
    parser.add_argument(
        "--depth", type=positive, default=0, metavar="N", help="raw ops at once (default: fits)"
    )
    parser.add_argument("--io", default="auto", choices=("auto", "uring", "threads"))
    parser.add_argument(
        "--simulate",
        metavar="DISK",
        help="another disk on paper, such as rate=50MB/s,latency=1ms,depth=1 (also read_rate, "
        "write_rate); with a folder in memory also one that is faster than this machine's",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run_disk)


def _add_store_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "store",
        help="host tier, lookups and interference, each figure beside its bound",
        description="Measures the store against plain copies and an idle machine in pairs. "
        "Exit 1: a bound is missed.",
    )
    parser.add_argument("--path", metavar="DIR", help="an empty folder, for parts with a disk")
    parser.add_argument("--only", nargs="+", metavar="PART", help="some parts only")
    parser.add_argument("--quick", action="store_true", help="less data: to try it out")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run_store)


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
    parser.add_argument("--requests", type=positive, metavar="N", help="replay the first N only")
    parser.add_argument(
        "--unpaced",
        action="store_true",
        help="do not wait for room in the disk's backlog: what comes too fast is not kept on disk",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run_trace)


def _run_copy(arguments: argparse.Namespace) -> int:
    from kvtier.bench.copy_command import run_copy

    return run_copy(
        device=arguments.device,
        parts=arguments.only,
        num_bytes=arguments.bytes,
        is_quick=arguments.quick,
        is_json=arguments.json,
        output=arguments.output,
        plot=arguments.plot,
        commit=arguments.commit,
    )


def _run_disk(arguments: argparse.Namespace) -> int:
    from kvtier.bench.disk_command import run_disk

    return run_disk(
        path=arguments.path,
        block_bytes=arguments.block_bytes,
        seconds=arguments.seconds,
        host_bytes=arguments.host_bytes,
        num_bytes=arguments.bytes,
        depth=arguments.depth,
        io=arguments.io,
        simulate=arguments.simulate,
        is_json=arguments.json,
    )


def _run_store(arguments: argparse.Namespace) -> int:
    from kvtier.bench.store_command import run_store

    return run_store(
        path=arguments.path,
        parts=arguments.only,
        is_quick=arguments.quick,
        is_json=arguments.json,
    )


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
