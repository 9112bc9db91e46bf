"""Arguments of `kvtier bench serve`; the command is imported when it runs. Stateless."""

from __future__ import annotations

import argparse

from kvtier.bench.argument_types import positive, seconds

_DESCRIPTION = """\
Measures an OpenAI-compatible vLLM under one workload in each mode: off (no connector), cpu, disk
and hybrid of kvtier, and vLLM's native offloading or LMCache where asked for. vLLM is started for
each mode, or servers that run are named by --url. Each mode warms up, then runs the workload a few
times, with new prompts each time; the table has medians of the runs, the articles' figures beside
them, and whether all modes gave the same outputs. Clocks start before a request is sent; the first
token is seen by streaming. Exit 1: a mode failed or requests timed out; nothing was evicted, or
nothing loaded, so that nothing was measured; outputs differ in float32. What follows -- goes to
`vllm serve`. Rates are in 10^9 bytes, sizes take units such as 4GiB."""


def add_serve_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `serve`, which sets `run`: a function of the arguments to exit code."""
    parser = commands.add_parser(
        "serve",
        help="a vLLM under one workload in each mode, side by side",
        description=_DESCRIPTION,
    )
    _add_servers(parser)
    _add_workload(parser)
    _add_measuring(parser)
    parser.add_argument(
        "serve_arguments", nargs="*", metavar="-- ARGUMENT", help="arguments of `vllm serve`"
    )
    parser.set_defaults(run=_run_serve)


def _add_servers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("servers")
    group.add_argument("--model", metavar="M", help="what `vllm serve` takes, or a server's name")
    group.add_argument(
        "--modes", metavar="M,…", help="off, cpu, disk, hybrid, native, lmcache (default: first 4)"
    )
    group.add_argument(
        "--url", action="append", metavar="MODE=URL", help="a server that runs in that mode"
    )
    group.add_argument("--python", metavar="FILE", help="Python with vLLM (default: this one)")
    group.add_argument("--path", metavar="DIR", help="folder on the SSD, for disk and hybrid")
    group.add_argument(
        "--host-bytes", default="4GiB", metavar="N", help="host tier, not of disk (default: 4GiB)"
    )
    group.add_argument(
        "--hybrid-host-bytes",
        metavar="N",
        help="host tier of hybrid, which has the disk behind it (default: as --host-bytes)",
    )
    group.add_argument(
        "--disk-bytes", default="16GiB", metavar="N", help="disk tier (default: 16GiB)"
    )
    group.add_argument(
        "--disk-host-bytes",
        default="256MiB",
        metavar="N",
        help="host memory of mode disk, for blocks on their way (default: 256MiB)",
    )
    group.add_argument(
        "--setting", action="append", metavar="NAME=VALUE", help="a further setting of kvtier"
    )
    group.add_argument(
        "--block-tokens", type=positive, default=32, metavar="N", help="(default: 32)"
    )
    group.add_argument(
        "--device-tokens",
        type=positive,
        metavar="N",
        help="tokens whose KV the engine itself may keep (default: what it finds room for)",
    )
    group.add_argument(
        "--start-s",
        type=seconds,
        default=600.0,
        metavar="S",
        help="how long vLLM may take to be ready (default: 600)",
    )


def _add_workload(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "workload; defaults in brackets: random, conversations, documents"
    )
    group.add_argument(
        "--workload",
        default="random",
        choices=("random", "conversations", "documents", "trace"),
        help="prompts that share nothing (the articles'), conversations that go on after others "
        "had their turn, questions on long documents in turn, or a request trace (default: random)",
    )
    group.add_argument(
        "--prompts",
        type=positive,
        metavar="N",
        help="prompts, conversations, documents or requests of the trace (32, 32, 16; trace: 200)",
    )
    group.add_argument("--visits", type=positive, metavar="N", help="times each is asked (1, 4, 4)")
    group.add_argument(
        "--input-tokens",
        type=positive,
        metavar="N",
        help="of a prompt, a conversation's first one (4096, 4096, 8192); trace: longer ones are "
        "left out (32768)",
    )
    group.add_argument(
        "--output-tokens",
        type=positive,
        metavar="N",
        help="of each answer (1024, 128, 128); trace: at most (128)",
    )
    group.add_argument(
        "--concurrency", type=positive, default=32, metavar="N", help="requests at once (32)"
    )
    group.add_argument("--trace", metavar="FILE", help="one object with 'hash_ids' a line")
    group.add_argument(
        "--trace-block-tokens",
        type=positive,
        default=512,
        metavar="N",
        help="tokens that an id of the trace becomes (default: 512)",
    )
    group.add_argument(
        "--trace-speed",
        type=seconds,
        default=0.0,
        metavar="X",
        help="1: at the trace's pace; 0: as fast as answers come (default)",
    )
    group.add_argument(
        "--vocabulary-tokens",
        type=positive,
        metavar="N",
        help="ids of prompts are below it (default: of --model's folder, else 10000)",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="(default: 0)")


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("measuring")
    group.add_argument("--runs", type=positive, default=3, metavar="N", help="(default: 3)")
    group.add_argument(
        "--warm-up", type=int, default=5, metavar="N", help="requests before the runs (default: 5)"
    )
    group.add_argument(
        "--timeout-s",
        type=seconds,
        default=5.0,
        metavar="S",
        help="longest time without a token, from sending on (default: 5); raise it where requests "
        "wait for each other",
    )
    group.add_argument(
        "--sweep",
        metavar="AXIS=A,B,…",
        help="concurrency, input-tokens, io-threads, or device-share (of the workload's tokens)",
    )
    group.add_argument("--output", metavar="FILE", help="JSON, written anew after each mode")
    group.add_argument("--plot", metavar="FILE", help="also draw into FILE (.png)")
    group.add_argument("--json", action="store_true", help="print one JSON object")


def _run_serve(arguments: argparse.Namespace) -> int:
    from kvtier.bench.serve.serve_command import run_serve

    return run_serve(arguments)
