"""`kvtier`: reads the arguments, runs one command, turns errors into exit codes. Stateless.

Exit codes: 0 good, 1 something was found, 2 the command could not be carried out.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from kvtier.errors import KvtierError

EXIT_GOOD: Final = 0
EXIT_FOUND: Final = 1
EXIT_USAGE: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    parsed = make_parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = parsed.run
    try:
        return run(parsed)
    except KvtierError as error:
        print(f"kvtier: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BrokenPipeError:
        # The reader of a pipe went away (`kvtier inspect … | head`); flushing at exit would
        # complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_GOOD
    except OSError as error:
        # Of a file that the command line names, or of what stood there a moment ago.
        print(f"kvtier: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return 130


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands; each sets `run`, a function of the arguments."""
    parser = argparse.ArgumentParser(
        prog="kvtier", description="The embedded tiered store for the KV cache of language models."
    )
    parser.add_argument("--version", action="version", version=_version_text())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_doctor(commands)
    _add_stats(commands)
    _add_top(commands)
    _add_metrics(commands)
    _add_inspect(commands)
    _add_verify(commands)
    _add_wipe(commands)
    _add_warmup(commands)
    _add_config(commands)
    _add_bench(commands)
    return parser


def _add_doctor(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "doctor", help="say what holds kvtier back on this machine, and the remedy"
    )
    parser.add_argument("path", nargs="?", metavar="PATH", help="folder meant for the disk tier")
    parser.add_argument(
        "--probe-bytes",
        default="256MiB",
        metavar="N",
        help="how much to write and read for the rates; 0: none (default: 256MiB)",
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show reason and remedy of notes as well"
    )
    _finish(parser, _run_doctor)


def _add_stats(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("stats", help="sum up what a store holds and how it fares")
    _add_store_path(parser)
    _finish(parser, _run_stats)


def _add_top(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("top", help="watch a running store")
    _add_store_path(parser)
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between frames"
    )
    parser.add_argument("--count", type=int, metavar="N", help="end after N frames")
    _finish(parser, _run_top)


def _add_metrics(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "metrics",
        help="show Prometheus the stores of other processes",
        description="Answers Prometheus until it is ended. Reads the stores' folders only.",
    )
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="folders of stores (default: KVTIER_PATH, else the only store that is open)",
    )
    parser.add_argument("--port", type=int, metavar="N", help="where to answer; 0: any free port")
    parser.add_argument("--host", default="127.0.0.1", help="(default: 127.0.0.1)")
    parser.add_argument(
        "--once", action="store_true", help="print the metrics and end; exit 1: a store is not up"
    )
    _finish(parser, _run_metrics)


def _add_store_path(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        nargs="?",
        metavar="PATH",
        help="folder of the store (default: KVTIER_PATH, else the only store that is open)",
    )


def _add_inspect(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("inspect", help="show namespaces and segments of a store's folder")
    parser.add_argument("path", metavar="PATH")
    _finish(parser, _run_inspect)


def _add_verify(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "verify",
        help="check every block of a store that is not in use",
        description="Reads every committed block and checks it. Exit 1: something is corrupt.",
    )
    parser.add_argument("path", metavar="PATH")
    parser.add_argument(
        "--rate", metavar="N", help="bytes a second to read at most, such as 200MB (default: all)"
    )
    _finish(parser, _run_verify)


def _add_wipe(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "wipe",
        help="remove a store's files",
        description="Removes kvtier's own files of all format versions, and nothing else; or of a "
        "store that is not in use the blocks that are named, with those that continue them.",
    )
    parser.add_argument("path", metavar="PATH")
    parser.add_argument(
        "--namespace", metavar="ID", help="only blocks of this namespace (`kvtier inspect` has ids)"
    )
    parser.add_argument("--salt", metavar="TEXT", help="only blocks of this tenant")
    parser.add_argument("--model", metavar="NAME", help="only blocks of this model")
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        help="only segments that nothing was written to for so long, such as 12h or 30d",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    _finish(parser, _run_wipe)


def _add_warmup(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "warmup",
        help="have a server compute the prompts of a file, so that its cache holds them",
        description="Sends each prompt to an OpenAI-compatible server with one token to answer. "
        "What was interrupted goes on where it was with the same command.",
    )
    parser.add_argument("--url", required=True, metavar="URL", help="http://HOST:PORT")
    parser.add_argument(
        "--prompt-file",
        required=True,
        metavar="FILE",
        help='.jsonl: an object a line with "prompt" or "messages"; else one prompt a line; '
        "- is the standard input",
    )
    parser.add_argument(
        "--separator", metavar="LINE", help="line that stands between prompts of several lines"
    )
    parser.add_argument("--model", metavar="NAME", help="default: the server's first")
    parser.add_argument("--concurrency", type=int, default=4, metavar="N", help="prompts at a time")
    parser.add_argument(
        "--timeout-s", type=float, default=600.0, metavar="S", help="for one prompt (default: 600)"
    )
    parser.add_argument(
        "--api-key-variable",
        metavar="NAME",
        help="environment variable with the server's key (default: OPENAI_API_KEY, which is sent "
        "over https or within this machine only)",
    )
    parser.add_argument("--pin", action="store_true", help="keep the prompts from eviction")
    parser.add_argument("--unpin", action="store_true", help="let them be evicted again")
    parser.add_argument(
        "--journal",
        metavar="FILE",
        help="where what is done is noted until all is (default: FILE.warmup); '': nowhere",
    )
    _finish(parser, _run_warmup)


def _add_config(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("config", help="show the settings in effect and their origin")
    parser.add_argument("file", nargs="?", metavar="FILE", help="a YAML file")
    parser.add_argument(
        "--explain", action="store_true", help="also show meaning, range and price of each"
    )
    _finish(parser, _run_config)


def _add_bench(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    try:
        from kvtier.bench.cli import add_bench_parser
    except ImportError:
        # A build may leave the benchmarks out.
        return
    add_bench_parser(commands)


def _finish(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def _version_text() -> str:
    from kvtier import __version__

    return f"kvtier {__version__}"


def _run_doctor(arguments: argparse.Namespace) -> int:
    from kvtier.cli.doctor.command import run_doctor

    return run_doctor(
        arguments.path,
        arguments.probe_bytes,
        is_json=arguments.json,
        is_verbose=arguments.verbose,
    )


def _run_stats(arguments: argparse.Namespace) -> int:
    from kvtier.cli.stats import run_stats

    return run_stats(arguments.path, is_json=arguments.json)


def _run_top(arguments: argparse.Namespace) -> int:
    from kvtier.cli.top import run_top

    return run_top(
        arguments.path,
        interval_s=arguments.interval,
        num_frames=arguments.count,
        is_json=arguments.json,
    )


def _run_metrics(arguments: argparse.Namespace) -> int:
    from kvtier.cli.metrics import run_metrics

    return run_metrics(
        arguments.paths,
        host=arguments.host,
        port=arguments.port,
        is_once=arguments.once,
        is_json=arguments.json,
    )


def _run_inspect(arguments: argparse.Namespace) -> int:
    from kvtier.cli.inspect import run_inspect

    return run_inspect(arguments.path, is_json=arguments.json)


def _run_verify(arguments: argparse.Namespace) -> int:
    from kvtier.cli.verify import run_verify

    return run_verify(arguments.path, rate_max=arguments.rate, is_json=arguments.json)


def _run_wipe(arguments: argparse.Namespace) -> int:
    from kvtier.cli.wipe import run_wipe
    from kvtier.cli.wipe_choice import WipeChoice

    return run_wipe(
        arguments.path,
        WipeChoice.parse(
            namespace_id=arguments.namespace,
            salt=arguments.salt,
            model=arguments.model,
            older_than=arguments.older_than,
        ),
        is_confirmed=arguments.yes,
        is_dry_run=arguments.dry_run,
        is_json=arguments.json,
    )


def _run_warmup(arguments: argparse.Namespace) -> int:
    from kvtier.cli.warmup import WarmupOptions, run_warmup_command

    return run_warmup_command(
        WarmupOptions(
            url=arguments.url,
            prompt_file=arguments.prompt_file,
            separator=arguments.separator,
            model=arguments.model,
            concurrency=arguments.concurrency,
            timeout_s=arguments.timeout_s,
            api_key_variable=arguments.api_key_variable,
            is_pinned=arguments.pin,
            is_unpinned=arguments.unpin,
            journal=arguments.journal,
            is_json=arguments.json,
        )
    )


def _run_config(arguments: argparse.Namespace) -> int:
    from kvtier.cli.config import run_config

    return run_config(arguments.file, is_explained=arguments.explain, is_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
