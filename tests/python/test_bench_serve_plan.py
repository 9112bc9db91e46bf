"""Plans: what cannot be measured is refused before anything is started."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from kvtier.bench.cli import add_bench_parser
from kvtier.bench.serve.serve_command import make_plan
from kvtier.bench.serve.serve_mode import MODES, ModeLaunch, TierSizes, make_launch
from kvtier.bench.serve.serve_plan import ServePlan
from kvtier.bench.serve.serve_run import make_command
from kvtier.errors import ConfigError

STARTED = ("--model", "m", "--path", "kv")


def plan_of(*words: str) -> ServePlan:
    parser = argparse.ArgumentParser()
    add_bench_parser(parser.add_subparsers())
    plan = make_plan(parser.parse_args(["bench", "serve", *words]))
    plan.check()
    return plan


def test_defaults_are_the_articles() -> None:
    plan = plan_of(*STARTED)
    assert plan.modes == ("off", "cpu", "disk", "hybrid")
    shape = plan.shape
    assert (shape.kind, shape.num_prompts, shape.input_tokens, shape.output_tokens) == (
        "random", 32, 4096, 1024,
    )  # fmt: skip
    assert (plan.concurrency, plan.num_warm_up, plan.num_runs, plan.timeout_s) == (32, 5, 3, 5.0)


def test_what_follows_two_dashes_goes_to_vllm_and_comes_last() -> None:
    plan = plan_of(*STARTED, "--device-tokens", "6000", "--", "--dtype", "float32", "--seed", "1")
    assert plan.is_exact
    command = make_command(plan, ModeLaunch(arguments=("--x", "y")), plan.points[0])
    assert command[-6:] == ["--x", "y", "--dtype", "float32", "--seed", "1"]
    assert command[command.index("--num-gpu-blocks-override") + 1] == str(-(-6000 // 32) + 1)
    assert command[command.index("--max-model-len") + 1] == str(4096 + 1024)
    assert not plan_of(*STARTED).is_exact


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--model", "m"), "disk and hybrid need a folder"),
        (("--path", "kv"), "give --model"),
        ((*STARTED, "--modes", "cpu,gpu"), "unknown mode 'gpu'"),
        ((*STARTED, "--modes", ","), "name at least one"),
        (("--url", "cpu"), "write MODE=URL"),
        (("--url", "fast=http://h"), "write MODE=URL"),
        (("--url", "cpu=h:80"), "write http://HOST:PORT"),
        (("--url", "cpu=http://h", "--url", "cpu=http://i"), "named twice"),
        (("--url", "cpu=http://h", "--modes", "off"), "off has no --url"),
        (("--url", "cpu=http://h", "--device-tokens", "9999"), "already take no --device-tokens"),
        (("--url", "cpu=http://h", "--", "--dtype", "float32"), "nothing after --"),
        ((*STARTED, "--timeout-s", "0"), "timeout-s: 0 waits for nothing"),
        ((*STARTED, "--setting", "direct"), "write NAME=VALUE"),
        ((*STARTED, "--device-tokens", "5120"), "do not hold one request of 5,120"),
        ((*STARTED, "--trace", "file"), "with --workload trace only"),
        ((*STARTED, "--workload", "trace"), "give --trace FILE"),
        ((*STARTED, "--host-bytes", "4 GiBs"), "host-bytes"),
        ((*STARTED, "--sweep", "colour=1,2"), "unknown axis 'colour'"),
        ((*STARTED, "--sweep", "concurrency=4"), "fewer than two values"),
        ((*STARTED, "--sweep", "concurrency=4,8,4"), "names a value twice"),
        ((*STARTED, "--sweep", "concurrency=1,many"), "whole number from 1 up, got 'many'"),
        ((*STARTED, "--sweep", "concurrency=0,1"), "whole number from 1 up, got '0'"),
        ((*STARTED, "--sweep", "input-tokens=1.5,2"), "whole number from 1 up, got '1.5'"),
        ((*STARTED, "--sweep", "device-share=0.5,1.5"), "share above 0, up to 1, got '1.5'"),
        ((*STARTED, "--sweep", "device-share=0.001,1"), "do not hold one request"),
        ((*STARTED, "--sweep", "concurrency=32,64"), "64 cannot be reached with 32"),
        ((*STARTED, "--sweep", "io-threads=1,8", "--modes", "off,cpu"), "none of the modes off"),
        (("--url", "cpu=http://h", "--sweep", "device-share=0.5,1"), "set when vLLM starts"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        plan_of(*words)


def test_a_sweep_changes_one_thing() -> None:
    threads = plan_of(*STARTED, "--sweep", "io-threads=1,8").points
    assert [point.num_io_threads for point in threads] == [1, 8]
    assert len({point.engine_key() for point in threads}) == 2
    inputs = plan_of(*STARTED, "--sweep", "input-tokens=2048,8192")
    assert [point.shape.input_tokens for point in inputs.points] == [2048, 8192]
    assert inputs.context_tokens == 8192 + 1024
    assert len({point.engine_key() for point in inputs.points}) == 1
    shares = plan_of(*STARTED, "--sweep", "device-share=0.25,1").points
    assert [point.device_tokens for point in shares] == [32 * 5120 // 4, 32 * 5120]


def test_modes_tell_vllm_what_they_are(tmp_path: Path) -> None:
    sizes = TierSizes(
        host_bytes=1 << 30,
        hybrid_host_bytes=1 << 29,
        disk_bytes=2 << 30,
        disk_host_bytes=1 << 20,
        settings={"checksum": "false"},
        num_io_threads=3,
    )
    launches = {mode: make_launch(mode, sizes, tmp_path) for mode in MODES}
    assert launches["off"].arguments == ()
    extras = {}
    for mode in ("cpu", "disk", "hybrid", "native"):
        flag, text = launches[mode].arguments
        assert flag == "--kv-transfer-config"
        extras[mode] = json.loads(text)["kv_connector_extra_config"]
    assert extras["cpu"] == {
        "kv_device": "cpu", "kv_max_cpu_memory": 1 << 30, "checksum": "false",
    }  # fmt: skip
    assert extras["disk"] == {
        "kv_device": "disk",
        "kv_max_cpu_memory": 1 << 20,
        "disk_path": str(tmp_path),
        "disk_bytes": 2 << 30,
        "num_io_threads": 3,
        "io": "threads",
        "checksum": "false",
    }
    assert extras["hybrid"]["kv_max_cpu_memory"] == 1 << 29
    assert extras["native"]["cpu_bytes_to_use"] == 1 << 30
    assert launches["lmcache"].needs == "lmcache"
    assert launches["lmcache"].environment["LMCACHE_MAX_LOCAL_CPU_SIZE"] == "1.000"


def test_hybrid_has_the_host_tier_of_cpu_unless_another_one_is_asked_for() -> None:
    sizes = plan_of(*STARTED, "--host-bytes", "2GiB").sizes
    assert (sizes.host_bytes, sizes.hybrid_host_bytes) == (2 << 30, 2 << 30)
    sizes = plan_of(*STARTED, "--host-bytes", "2GiB", "--hybrid-host-bytes", "1GiB").sizes
    assert (sizes.host_bytes, sizes.hybrid_host_bytes) == (2 << 30, 1 << 30)


def test_ids_stay_below_the_model_s_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 512}')
    words = ("--model", str(tmp_path), "--path", "kv")
    assert plan_of(*words).shape.vocabulary_tokens == 512
    assert plan_of(*words, "--vocabulary-tokens", "400").shape.vocabulary_tokens == 400
    assert plan_of(*STARTED).shape.vocabulary_tokens == 10_000
