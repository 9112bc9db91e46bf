"""`kvtier bench serve` from end to end: against servers that run, and a vLLM that is played."""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_openai_server import MODEL, serve

from kvtier.bench.cli import add_bench_parser
from kvtier.bench.serve import settling
from kvtier.bench.serve.engine_process import engine_environment

HERE = Path(__file__).resolve().parent
LOAD = ("--prompts", "3", "--visits", "2", "--input-tokens", "64", "--output-tokens", "4")
SMALL = (*LOAD, "--concurrency", "2", "--warm-up", "1", "--runs", "2")
Bench = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The played servers tell of everything at once."""
    monkeypatch.setattr(settling, "COUNTED_S", 0.0)


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Bench:
    def call(*words: object) -> tuple[int, str, str]:
        parser = argparse.ArgumentParser()
        add_bench_parser(parser.add_subparsers())
        arguments = parser.parse_args(["bench", "serve", *map(str, words)])
        status = arguments.run(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def played_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `vllm` whose `serve` is the fake server; mode cpu ends before it is ready."""
    folder = tmp_path / "packages" / "vllm" / "entrypoints" / "cli"
    folder.mkdir(parents=True)
    for parent in (folder, folder.parent, folder.parent.parent):
        (parent / "__init__.py").touch()
    (folder / "main.py").write_text(
        textwrap.dedent(
            f"""
            import subprocess, sys
            sys.path.insert(0, {str(HERE)!r})
            if '"kv_device": "cpu"' in " ".join(sys.argv):
                print("ValueError: no room for cpu")
                print(*["the others miss it"] * 30, sep="\\n")
                sys.exit(1)
            # Something that cannot be told to end.
            program = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(300)"
            child = subprocess.Popen([sys.executable, "-c", program])
            open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
            import fake_openai_server
            fake_openai_server.MODEL = sys.argv[2]
            fake_openai_server.main()
            """
        )
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    return tmp_path


def test_servers_that_run_are_compared(bench: Bench, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    with serve(has_tiers=False) as (off, _), serve() as (cpu, state):
        words = ("--url", f"off={off}", "--url", f"cpu={cpu}/v1", *SMALL)
        status, out, err = bench(*words, "--json", "--output", output)
    report = json.loads(out)
    assert report["faults"] == []
    assert status == 0
    assert report == json.loads(output.read_text())
    assert [it["mode"] for it in report["results"]] == ["off", "cpu"]
    cpu_result = report["results"][1]
    assert cpu_result["outputs"] == {"reference": "off", "compared": 12, "different": 0}
    assert len(cpu_result["runs"]) == 2
    assert cpu_result["figures"]["host_read_gb"] > 0
    assert "run 2 of 2" in err
    prompts = [tuple(it["prompt"]) for it in state.asked if len(it["prompt"]) == 64]
    # One warm-up, and three prompts twice in each of two runs; no prompt in two runs.
    assert len(prompts) == 13
    assert len(set(prompts)) == 7


def test_outputs_that_differ_are_seen(bench: Bench) -> None:
    with serve() as (off, _), serve(salt="other weights") as (cpu, _):
        status, out, _ = bench("--url", f"off={off}", "--url", f"cpu={cpu}", *SMALL)
    assert "12 of 12 DIFFER" in out
    assert "may round another way" in out
    assert status == 0


def test_a_workload_that_the_engine_keeps_measures_nothing(bench: Bench) -> None:
    with serve(room_tokens=32_000) as (url, _):
        status, out, _ = bench("--url", f"cpu={url}", *SMALL)
    assert status == 1
    assert "nothing was evicted, so nothing was measured" in out


def test_a_server_without_counters_is_measured_all_the_same(bench: Bench) -> None:
    with serve(behaviour="no_metrics") as (url, _):
        status, out, _ = bench("--url", f"off={url}", *SMALL, "--json")
    figures = json.loads(out)["results"][0]["figures"]
    assert figures["ttft_mean_s"] > 0
    assert figures["preemptions"] is None
    assert status == 0


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("die:9", "run 2 ended after"),
        ("stall:9", "the server stalls"),
        ("no_stream", "warm-up ended after 0 of 1 requests: the server does not stream"),
    ],
)
def test_what_other_modes_and_runs_brought_is_kept(
    bench: Bench, behaviour: str, reason: str
) -> None:
    with serve() as (off, _), serve(behaviour=behaviour) as (cpu, _):
        words = ("--url", f"off={off}", "--url", f"cpu={cpu}", *SMALL, "--timeout-s", "0.5")
        status, out, err = bench(*words, "--start-s", "1", "--json")
    assert status == 1
    results = {it["mode"]: it for it in json.loads(out)["results"]}
    assert len(results["off"]["runs"]) == 2
    assert reason in results["cpu"]["error"]
    assert len(results["cpu"]["runs"]) == (0 if behaviour == "no_stream" else 1)
    assert reason in err


def test_a_wrong_model_is_answered_with_those_there_are(bench: Bench) -> None:
    with serve() as (url, _):
        status, out, _ = bench("--url", f"off={url}", "--model", "llama", *SMALL)
    assert status == 1
    assert f"has no model 'llama'; it serves {MODEL}" in out


def test_a_sweep_has_a_table_a_point(bench: Bench, tmp_path: Path) -> None:
    output = tmp_path / "sweep.json"
    with serve() as (url, state):
        words = ("--url", f"cpu={url}", *SMALL, "--sweep", "concurrency=1,3", "--output", output)
        _, out, _ = bench(*words)
    assert "concurrency 1" in out
    assert "concurrency 3" in out
    assert [it["point"] for it in json.loads(output.read_text())["results"]] == [1, 3]
    prompts = [tuple(it["prompt"]) for it in state.asked if len(it["prompt"]) == 64]
    # A later point must not find what an earlier one left.
    assert len(set(prompts)) == 2 * 7


def ends_soon(pid: int) -> bool:
    """Whether a process of that id is gone, or goes within a few seconds."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 10.0)[0])
    finally:
        os.close(process)


def test_vllm_is_started_for_each_mode_and_ended_with_all_its_processes(
    bench: Bench, played_vllm: Path
) -> None:
    kv = played_vllm / "kv"
    words = ("--model", "played", "--path", kv, "--modes", "off,cpu,hybrid", *SMALL)
    status, out, _ = bench(*words, "--json")
    results = {it["mode"]: it for it in json.loads(out)["results"]}
    assert status == 1
    assert "vLLM ended with status 1" in results["cpu"]["error"]
    assert "ValueError: no room for cpu" in results["cpu"]["error"]
    assert [len(results[mode]["runs"]) for mode in ("off", "cpu", "hybrid")] == [2, 0, 2]
    assert results["hybrid"]["outputs"]["different"] == 0
    assert results["off"]["figures"]["memory_gb"] > 0.005
    assert ends_soon(int((played_vllm / "child").read_text()))
    # The log of the mode that failed is kept, its disk is not.
    assert [path.name for path in kv.rglob("*.log")]
    assert not list(kv.rglob("*-disk"))


def test_a_bench_that_is_told_to_end_ends_vllm_and_keeps_what_it_has(played_vllm: Path) -> None:
    output = played_vllm / "out.json"
    program = (
        "import sys; from kvtier.bench.serve import settling; settling.COUNTED_S = 0.0; "
        "from kvtier.cli.main import main; sys.exit(main())"
    )
    words = ["--model", "played", "--modes", "off", *SMALL, "--runs", "100000", "--json"]
    with subprocess.Popen(
        [sys.executable, "-c", program, "bench", "serve", *words, "--output", str(output)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{HERE.parents[1]}:{os.environ['PYTHONPATH']}"},
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "run 3 of" in line:
                process.terminate()
                break
        out, _ = process.communicate(timeout=60)
    report = json.loads(out)
    assert process.returncode == 130
    assert report["faults"][0].startswith("interrupted")
    assert len(report["results"][0]["runs"]) >= 2
    assert report == json.loads(output.read_text())
    assert ends_soon(int((played_vllm / "child").read_text()))


def test_a_disk_in_memory_is_named(bench: Bench, played_vllm: Path) -> None:
    if not Path("/dev/shm").is_dir():
        pytest.skip("no /dev/shm")
    folder = Path("/dev/shm") / f"kvtier-test-{os.getpid()}"
    try:
        words = ("--model", "played", "--path", folder, "--modes", "hybrid", *SMALL)
        _, out, _ = bench(*words)
    finally:
        folder.rmdir()
    assert f"{folder} is a tmpfs" in out


def test_a_python_without_vllm_is_named(bench: Bench, tmp_path: Path) -> None:
    words = ("--model", "m", "--modes", "off", *SMALL)
    status, out, _ = bench(*words, "--python", tmp_path / "none")
    assert status == 1
    assert f"cannot run {tmp_path / 'none'}" in out


def test_all_modes_compute_with_the_same_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU vLLM reserves another core for a connector, which made "off" half as fast."""
    name = "VLLM_CPU_NUM_OF_RESERVED_CPU"
    monkeypatch.delenv(name, raising=False)
    assert engine_environment()[name] == "2"
    # What the user has set holds for all modes as it is.
    monkeypatch.setenv(name, "5")
    assert name not in engine_environment()
