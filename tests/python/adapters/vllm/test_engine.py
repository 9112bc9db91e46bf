"""A real engine on a CPU: the same tokens with and without kvtier, whatever goes wrong."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from engine_runs import RUN_S, run_child, run_plan, write_model

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

NUM_REQUESTS = 40
Run: TypeAlias = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.timeout(3 * RUN_S)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("out") / "answers.json"

    def run_one(extra: dict[str, Any] | None, *rounds: str, **faults: Any) -> dict[str, Any]:
        plan = {
            "model": str(model),
            "extra": extra,
            "num_requests": NUM_REQUESTS,
            "rounds": rounds,
            **faults,
        }
        return run_plan(plan, out)

    return run_one


@pytest.fixture(scope="module")
def expected(run: Run) -> list[list[int]]:
    answered = run(None, "ask")
    assert answered["metrics"]["vllm:num_preemptions"] > 0
    (tokens,) = answered["answers"]
    # Else equal tokens would prove nothing.
    assert len({tuple(it) for it in tokens}) == NUM_REQUESTS
    return list(tokens)


@pytest.fixture
def extra_of(disk_folder: Path) -> Callable[[str], dict[str, Any]]:
    sizes = {"disk_bytes": "256MiB", "staging_bytes": "8MiB"}

    def make(mode: str) -> dict[str, Any]:
        if mode == "cpu":
            return {"kv_device": "cpu", "kv_max_cpu_memory": "16MiB"}
        # So small a model computes faster than a disk reads.
        disk = {"kv_device": mode, "disk_path": str(disk_folder), "load_cap": "off", **sizes}
        return {**disk, "kv_max_cpu_memory": "1MiB" if mode == "disk" else "8MiB"}

    return make


@pytest.mark.parametrize("mode", ["cpu", "disk", "hybrid"])
def test_the_tokens_are_the_same_with_preemption_resets_and_failed_loads(
    mode: str, run: Run, expected: list[list[int]], extra_of: Callable[[str], dict[str, Any]]
) -> None:
    answered = run(extra_of(mode), "ask", "ask", "reset", "ask", fail_every=10)
    assert [it == expected for it in answered["answers"]] == [True] * 3
    assert answered["num_failed"] > 0
    assert answered["metrics"]["vllm:num_preemptions"] > 0
    tier = "disk" if mode == "disk" else "host"
    assert answered["metrics"][f"vllm:kvtier_hits:{tier}"] > 0


@pytest.mark.parametrize("mode", ["disk", "hybrid"])
def test_a_restarted_engine_finds_its_blocks_on_disk(
    mode: str, run: Run, expected: list[list[int]], extra_of: Callable[[str], dict[str, Any]]
) -> None:
    extra = extra_of(mode)
    assert run(extra, "ask")["answers"] == [expected]
    # However soon all are answered, the metrics tell of it.
    answered = run(extra, "ask", fail_every=10, metrics_interval_s=RUN_S)
    assert answered["answers"] == [expected]
    assert answered["metrics"]["vllm:kvtier_hits:disk"] > 0


def test_off_is_an_engine_without_kvtier(run: Run, expected: list[list[int]]) -> None:
    answered = run({"kv_device": "off"}, "ask")
    assert answered["answers"] == [expected]
    assert answered["num_loads"] == 0


def test_spoiled_bytes_would_be_seen(
    run: Run, expected: list[list[int]], extra_of: Callable[[str], dict[str, Any]]
) -> None:
    answered = run(extra_of("cpu"), "ask", "ask", flips_bytes=True)
    assert answered["answers"][-1] != expected


def test_a_misspelt_setting_ends_the_start_with_the_right_name(model: Path, tmp_path: Path) -> None:
    plan = {"model": str(model), "extra": {"disk_pth": "/kv"}, "num_requests": 1, "rounds": []}
    done = run_child("engine_child.py", json.dumps(plan), str(tmp_path / "out"))
    assert done.returncode != 0
    assert "did you mean disk_path?" in done.stderr + done.stdout


# One thread each: what two ranks add up does not hang on how many CPUs there are.
RANKS = {"num_ranks": 2}


@pytest.fixture(scope="module")
def expected_of_ranks(run: Run) -> list[list[int]]:
    (tokens,) = run(None, "ask", **RANKS)["answers"]
    assert len({tuple(it) for it in tokens}) == NUM_REQUESTS
    return list(tokens)


@pytest.mark.parametrize("mode", ["cpu", "hybrid"])
def test_two_ranks_give_the_same_tokens_with_resets_and_failed_loads(
    mode: str,
    run: Run,
    expected_of_ranks: list[list[int]],
    extra_of: Callable[[str], dict[str, Any]],
) -> None:
    answered = run(extra_of(mode), "ask", "ask", "reset", "ask", fail_every=10, **RANKS)
    assert [it == expected_of_ranks for it in answered["answers"]] == [True] * 3
    assert answered["num_failed"] > 0
    assert answered["metrics"]["vllm:kvtier_hits:host"] > 0


def test_restarted_ranks_find_their_blocks_on_disk(
    run: Run, expected_of_ranks: list[list[int]], extra_of: Callable[[str], dict[str, Any]]
) -> None:
    extra = extra_of("disk")
    assert run(extra, "ask", **RANKS)["answers"] == [expected_of_ranks]
    answered = run(extra, "ask", fail_every=10, metrics_interval_s=RUN_S, **RANKS)
    assert answered["answers"] == [expected_of_ranks]
    assert answered["metrics"]["vllm:kvtier_hits:disk"] > 0


def test_bytes_spoiled_in_a_rank_would_be_seen(
    run: Run, expected_of_ranks: list[list[int]], extra_of: Callable[[str], dict[str, Any]]
) -> None:
    answered = run(extra_of("cpu"), "ask", "ask", flips_bytes=True, **RANKS)
    assert answered["answers"][-1] != expected_of_ranks
