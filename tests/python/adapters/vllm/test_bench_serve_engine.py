"""`kvtier bench serve` with a real vLLM on a CPU: started, loaded, compared, ended."""

import argparse
import importlib.util
import json
from pathlib import Path

import pytest
from engine_runs import ENVIRONMENT, write_model

from kvtier.bench.cli import add_bench_parser

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

START_S = 300
LOAD = "--workload documents --prompts 4 --visits 2 --input-tokens 160 --output-tokens 8"
MEASURING = "--concurrency 2 --warm-up 1 --runs 1 --timeout-s 120 --device-tokens 352"


@pytest.mark.timeout(3 * START_S)
def test_modes_give_the_same_tokens_and_tell_what_they_loaded(
    tmp_path: Path,
    disk_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HF_HUB_OFFLINE", "VLLM_CPU_KVCACHE_SPACE"):
        monkeypatch.setenv(name, ENVIRONMENT[name])
    parser = argparse.ArgumentParser()
    add_bench_parser(parser.add_subparsers())
    model = write_model(tmp_path / "model")
    words = [*f"bench serve --model {model} --path {disk_folder} --json".split()]
    words += f"--modes off,hybrid --host-bytes 8MiB --disk-bytes 64MiB --start-s {START_S}".split()
    words += [*LOAD.split(), *MEASURING.split(), "--setting", "staging_bytes=8MiB"]
    # So small a model computes faster than a disk reads.
    words += ["--setting", "load_cap=off"]
    # The model has no tokenizer; ids go in and out.
    words += ["--", "--dtype", "float32", "--enforce-eager", "--skip-tokenizer-init"]
    arguments = parser.parse_args(words)
    status = arguments.run(arguments)
    report = json.loads(capsys.readouterr().out)
    assert report["faults"] == []
    assert status == 0
    off, hybrid = report["results"]
    assert hybrid["outputs"] == {"reference": "off", "compared": 8, "different": 0}
    assert off["figures"]["hit_rate_host"] is None
    assert hybrid["figures"]["hit_rate_host"] > 0.3
    assert hybrid["figures"]["host_read_gb"] > 0
    assert hybrid["figures"]["disk_written_gb"] > 0
    for result in (off, hybrid):
        assert result["figures"]["ttft_cold_s"] > 0
        assert result["figures"]["memory_gb"] > 0.1
