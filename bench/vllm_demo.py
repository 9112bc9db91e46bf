"""`make demo`: a real model on a real vLLM: long documents asked cold, from memory and from disk.

Usage: vllm_demo.py --python VLLM_PYTHON [--documents N] [--out DIR]. Each document is asked cold,
again after the others pushed it out of the engine's own cache, and again after the whole engine was
restarted. Exit 1: an answer differed, or a document was computed again that a tier held. One
thread; engines run in processes of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / "bench"
DOCUMENT_FOLDERS = ("/usr/share/common-licenses", str(ROOT / "docs"))
DOCUMENT_BYTES_MIN = 12_000
NUM_PROMPT_TOKENS = 1920
NUM_ANSWER_TOKENS = 24
BLOCK_TOKENS = 32
QUESTION = "\n\nQuestion: What is the text above about?\nAnswer: It is about"
RUN_S_MAX = 900
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # On a CPU vLLM would put its worker into a process of its own.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "PYTHONPATH": str(ROOT),
}


class DemoError(Exception):
    """A step failed; the text says which, and where its log is."""


@dataclass(frozen=True, kw_only=True)
class Visit:
    """All documents asked once, in one state of the caches."""

    name: str
    answers: list[str]
    ttft_s: list[float]
    num_cached: list[int]
    """Tokens of each document that were not computed."""
    counters: dict[str, float]

    @property
    def mean_s(self) -> float:
        return sum(self.ttft_s) / len(self.ttft_s)


def main() -> int:
    arguments = _parse_arguments()
    console = Console()
    started_s = time.monotonic()
    work = arguments.out / f"vllm-demo-{os.getpid()}"
    work.mkdir(parents=True)
    try:
        documents = list(find_documents(arguments.documents))
        if len(documents) < 2:
            raise DemoError(f"fewer than two long documents in {', '.join(DOCUMENT_FOLDERS)}")
        model = make_model(arguments.python, arguments.out, console)
        visits, num_tokens = run_engines(arguments.python, model, documents, work, console)
    except DemoError as error:
        console.print(f"[bold red]FAILED:[/bold red] {error}")
        return 1
    finally:
        shutil.rmtree(work / "store", ignore_errors=True)
    print_visits(visits, documents, num_tokens, console)
    draw(visits, arguments.out / "vllm_demo.png", console)
    shutil.rmtree(work, ignore_errors=True)
    return judge(visits, num_tokens, time.monotonic() - started_s, console)


def find_documents(num_documents: int) -> Iterator[Path]:
    """Yields long texts that are found on nearly every machine, one of each family of names."""
    seen: set[str] = set()
    for folder in DOCUMENT_FOLDERS:
        for path in sorted(Path(folder).rglob("*")):
            if len(seen) == num_documents:
                return
            family = path.name.partition("-")[0]
            if family not in seen and _is_long_text(path):
                seen.add(family)
                yield path


def _is_long_text(path: Path) -> bool:
    # Versions stand in some names: "GPL-3.0" has a suffix of ".0".
    has_text_name = path.suffix in {"", ".txt", ".md"} or path.suffix[1:].isdigit()
    if not has_text_name or path.is_symlink() or not path.is_file():
        return False
    return path.stat().st_size >= DOCUMENT_BYTES_MIN


def make_model(python: Path, out: Path, console: Console) -> Path:
    folder = out / "smollm2-135m"
    started_s = time.monotonic()
    _run([str(python), str(BENCH / "vllm/make_model.py"), str(folder)], out / "make_model.log")
    console.print(f"model: {os.path.relpath(folder)} ({time.monotonic() - started_s:.0f} s)")
    return folder


def run_engines(
    python: Path, model: Path, documents: Sequence[Path], work: Path, console: Console
) -> tuple[list[Visit], list[int]]:
    """Asks twice in one engine and once in the next; the store's folder outlives the first."""
    plan = {
        "model": str(model),
        "texts": [path.read_text(errors="replace") for path in documents],
        "question": QUESTION,
        "num_prompt_tokens": NUM_PROMPT_TOKENS,
        "num_answer_tokens": NUM_ANSWER_TOKENS,
        "block_tokens": BLOCK_TOKENS,
        "extra": {
            "kv_device": "hybrid",
            "kv_max_cpu_memory": "768MiB",
            "disk_path": str(work / "store"),
            "disk_bytes": "2GiB",
        },
    }
    visits: list[Visit] = []
    num_tokens: list[int] = []
    for names in (("cold", "host hit"), ("disk hit",)):
        started_s = time.monotonic()
        answered = _run_engine(python, {**plan, "num_passes": len(names)}, work)
        num_tokens = answered["num_tokens"]
        visits += [
            Visit(name=name, **one) for name, one in zip(names, answered["passes"], strict=True)
        ]
        console.print(f"engine: {' and '.join(names)} ({time.monotonic() - started_s:.0f} s)")
    return visits, num_tokens


def print_visits(
    visits: Sequence[Visit], documents: Sequence[Path], num_tokens: Sequence[int], console: Console
) -> None:
    table = Table(title="Time to the first token")
    table.add_column("document")
    for heading in ("tokens", *(visit.name for visit in visits), "same answer"):
        table.add_column(heading, justify="right")
    for index, path in enumerate(documents):
        answers = {visit.answers[index] for visit in visits}
        table.add_row(
            path.name,
            f"{num_tokens[index]:,}",
            *(f"{visit.ttft_s[index] * 1000:,.0f} ms" for visit in visits),
            "yes" if len(answers) == 1 else "NO",
        )
    console.print(table)
    traffic = Table(title="Tiers, counted by each engine")
    traffic.add_column("after")
    for heading in ("host hits", "disk hits", "host read", "disk read", "disk written"):
        traffic.add_column(heading, justify="right")
    for visit in visits[1:]:
        counters = visit.counters
        traffic.add_row(
            visit.name,
            *(f"{counters.get(f'{tier}_hits', 0):,.0f} blocks" for tier in ("host", "disk")),
            *(
                f"{counters.get(name, 0) / 1e6:,.0f} MB"
                for name in ("host_bytes_read", "disk_bytes_read", "disk_bytes_written")
            ),
        )
    console.print(traffic)
    for path, answer in zip(documents, visits[0].answers, strict=True):
        console.print(f"{path.name}: … about{answer}", style="dim", highlight=False, markup=False)


def draw(visits: Sequence[Visit], path: Path, console: Console) -> None:
    """A machine without matplotlib still gets the tables."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        console.print(f"no picture: {error}")
        return
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    width = 0.8 / len(visits)
    for index, visit in enumerate(visits):
        places = [number + index * width for number in range(len(visit.ttft_s))]
        axes.bar(places, [it * 1000 for it in visit.ttft_s], width, label=visit.name)
    axes.set_yscale("log")
    axes.set_ylabel("time to first token, ms")
    axes.set_xlabel("document")
    axes.set_xticks([])
    axes.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    console.print(f"picture: {os.path.relpath(path)}", highlight=False)


def judge(
    visits: Sequence[Visit], num_tokens: Sequence[int], seconds: float, console: Console
) -> int:
    cold, host, disk = visits
    faults = [
        f"{visit.name}: an answer differs from the cold one"
        for visit in (host, disk)
        if visit.answers != cold.answers
    ]
    for visit in (host, disk):
        # Of each prompt the end is always computed.
        num_again = sum(
            num_asked - num_cached > BLOCK_TOKENS
            for num_asked, num_cached in zip(num_tokens, visit.num_cached, strict=True)
        )
        if num_again:
            faults.append(f"{visit.name}: {num_again} documents were computed again")
    if host.counters.get("host_hits", 0) == 0:
        faults.append("the host tier delivered nothing")
    # Blocks may have been brought to the host tier first, and then count as its hits.
    if disk.counters.get("disk_bytes_read", 0) == 0:
        faults.append("the disk tier delivered nothing after the restart")
    for fault in faults:
        console.print(f"[bold red]FAILED:[/bold red] {fault}")
    if not faults:
        console.print(
            f"All answers are the same. First token {cold.mean_s / host.mean_s:.1f} times as fast "
            f"from host memory, {cold.mean_s / disk.mean_s:.1f} times from disk after a restart. "
            f"{seconds:.0f} s in all.",
            highlight=False,
        )
    return 1 if faults else 0


def _run_engine(python: Path, plan: dict[str, Any], work: Path) -> dict[str, Any]:
    plan_path, out_path = work / "plan.json", work / "out.json"
    plan_path.write_text(json.dumps(plan))
    script = str(BENCH / "vllm/engine_run.py")
    _run([str(python), script, str(plan_path), str(out_path)], work / "engine.log")
    answered: dict[str, Any] = json.loads(out_path.read_text())
    return answered


def _run(command: Sequence[str], log: Path) -> None:
    with log.open("wb") as file:
        try:
            done = subprocess.run(
                command,
                env={**os.environ, **ENVIRONMENT},
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=RUN_S_MAX,
            )
            status = f"status {done.returncode}" if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            status = str(error)
    if status:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise DemoError(f"{Path(command[1]).name}: {status}; log: {log}\n{tail}")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Asks a real model about long documents.")
    parser.add_argument("--python", type=Path, required=True, help="of the environment with vLLM")
    parser.add_argument("--documents", type=int, default=4, help="how many documents")
    parser.add_argument("--out", type=Path, default=BENCH / "out", help="where the picture goes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
