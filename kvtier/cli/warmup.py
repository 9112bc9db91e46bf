"""`kvtier warmup`: fills a server's cache with the prompts of a file. One event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kvtier.cli.main import EXIT_FOUND, EXIT_GOOD, EXIT_USAGE
from kvtier.errors import ConfigError
from kvtier.http_stream import ServerError, ServerUrl
from kvtier.units import format_bytes
from kvtier.warmup.api_key import choose_key
from kvtier.warmup.journal import Journal
from kvtier.warmup.prompt_file import Prompt, read_prompts
from kvtier.warmup.server_model import TIERS, ServerModel, Stored, find_model
from kvtier.warmup.warmup_run import Outcome, run_warmup

CONCURRENCY_MAX = 1024
_REFUSED_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class WarmupOptions:
    """What the command line says."""

    url: str
    prompt_file: str
    separator: str | None
    model: str | None
    concurrency: int
    timeout_s: float
    api_key_variable: str | None
    """None: the usual one, where that is safe."""
    is_pinned: bool
    is_unpinned: bool
    journal: str | None
    """None: beside the prompt file; "": none."""
    is_json: bool


def run_warmup_command(options: WarmupOptions) -> int:
    """Returns 0 when all prompts are computed, 1 when the server refused some, 2 when it failed."""
    _check(options)
    prompts = read_prompts(options.prompt_file, separator=options.separator)
    try:
        return asyncio.run(_warm_up(options, prompts))
    except ServerError as error:
        raise ConfigError(f"nothing was sent: {error}") from error


async def _warm_up(options: WarmupOptions, prompts: Sequence[Prompt]) -> int:
    server = ServerUrl.parse(options.url)
    token = choose_key(server, options.api_key_variable, os.environ)
    model = ServerModel(
        server=server,
        model=options.model or await find_model(server, bearer_token=token),
        timeout_s=options.timeout_s,
        bearer_token=token,
        wishes={"pin" if options.is_pinned else "unpin": True}
        if options.is_pinned or options.is_unpinned
        else None,
    )
    before = await model.find_stored()
    started_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        journal = _open_journal(options, model, stack)
        done = journal.done if journal is not None else frozenset()
        left = [prompt for prompt in prompts if prompt.digest not in done]
        progress = stack.enter_context(_progress(len(left), is_shown=not options.is_json))
        outcome = await run_warmup(
            model, left, concurrency=options.concurrency, journal=journal, on_done=progress
        )
        if journal is not None and outcome.is_finished:
            journal.finish()
    seconds = time.monotonic() - started_s
    after = await model.find_stored()
    summary = {
        "model": model.model,
        "prompts": len(prompts),
        "done": outcome.num_done,
        "done_before": len(prompts) - len(left),
        "refused": [
            {"line": prompt.line, "name": prompt.name, "reason": reason}
            for prompt, reason in outcome.refused
        ],
        "left": len(left) - outcome.num_done - len(outcome.refused),
        "prompt_tokens": outcome.num_tokens,
        "seconds": seconds,
        "failure": outcome.failure,
        "stored": _describe_stored(before, after),
    }
    if options.is_json:
        print(json.dumps(summary, indent=2))
    else:
        _print_summary(summary, outcome, before, after)
    if outcome.failure is not None:
        return EXIT_USAGE
    return EXIT_FOUND if outcome.refused else EXIT_GOOD


def _check(options: WarmupOptions) -> None:
    if not 1 <= options.concurrency <= CONCURRENCY_MAX:
        raise ConfigError(f"--concurrency: {options.concurrency} is not within 1 to 1,024")
    if not options.timeout_s > 0:
        raise ConfigError(f"--timeout-s: {options.timeout_s} is not above 0")
    if options.is_pinned and options.is_unpinned:
        raise ConfigError("--pin and --unpin contradict each other")


def _open_journal(
    options: WarmupOptions, model: ServerModel, stack: contextlib.ExitStack
) -> Journal | None:
    path = options.journal
    if path is None:
        path = "" if options.prompt_file == "-" else f"{options.prompt_file}.warmup"
    if not path:
        return None
    purpose = json.dumps([str(model.server), model.model, model.wishes])
    prompt_file = None if options.prompt_file == "-" else os.path.expanduser(options.prompt_file)
    return stack.enter_context(
        Journal(os.path.expanduser(path), purpose=purpose, prompt_file=prompt_file)
    )


def _describe_stored(before: Stored | None, after: Stored | None) -> dict[str, object] | None:
    if after is None:
        return None
    return {
        tier: {
            "bytes": after.num_bytes[tier],
            "blocks": after.num_blocks[tier],
            "more_bytes": after.num_bytes[tier] - (before.num_bytes[tier] if before else 0),
        }
        for tier in TIERS
    }


def _print_summary(
    summary: dict[str, object], outcome: Outcome, before: Stored | None, after: Stored | None
) -> None:
    seconds = float(str(summary["seconds"]))
    rate = outcome.num_tokens / seconds if seconds > 0 else 0.0
    earlier = f", {summary['done_before']} before" if summary["done_before"] else ""
    print(
        f"{outcome.num_done} prompts computed{earlier}, {outcome.num_tokens:,} tokens in "
        f"{seconds:.1f} s ({rate:,.0f} tokens/s), model {summary['model']}"
    )
    if after is None:
        print("  the server does not tell what kvtier holds (no vllm:kvtier_* at /metrics)")
    else:
        for tier in TIERS:
            more = after.num_bytes[tier] - (before.num_bytes[tier] if before else 0)
            print(
                f"  {tier}: {after.num_blocks[tier]:,.0f} blocks, "
                f"{format_bytes(int(after.num_bytes[tier]))} ({'+' if more >= 0 else '-'}"
                f"{format_bytes(abs(int(more)))})"
            )
    for prompt, reason in outcome.refused[:_REFUSED_SHOWN]:
        print(f"  refused: line {prompt.line} ({prompt.name}): {reason}")
    if len(outcome.refused) > _REFUSED_SHOWN:
        print(f"  … and {len(outcome.refused) - _REFUSED_SHOWN} more (--json lists them)")
    if summary["done_before"] and outcome.failure is None and not outcome.is_finished:
        print(
            "all that was left was refused, so what was done before stays noted; --journal '' "
            "begins anew",
            file=sys.stderr,
        )
    if outcome.failure is not None:
        print(
            f"ended early: {outcome.failure}\n{summary['left']} prompts are left; the same command "
            "goes on with them",
            file=sys.stderr,
        )


@contextmanager
def _progress(num_prompts: int, *, is_shown: bool) -> Iterator[Callable[[Outcome], None]]:
    if not (is_shown and sys.stderr.isatty()):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as shown:
        task = shown.add_task("", total=num_prompts)
        yield lambda outcome: shown.update(
            task,
            completed=outcome.num_done + len(outcome.refused),
            description=f"{outcome.num_tokens:,} tokens",
        )
