"""A real engine with layers that see a window only: the same tokens with and without kvtier."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import vllm_engine  # noqa: F401
from engine_runs import RUN_S, run_plan, write_model

NUM_REQUESTS = 50
# Three groups share them: as few as one request of the greatest length needs.
NUM_DEVICE_BLOCKS = 110
Run: TypeAlias = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.timeout(4 * RUN_S)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    model = write_model(tmp_path_factory.mktemp("model"), "windows")
    out = tmp_path_factory.mktemp("out") / "answers.json"

    def run_one(extra: dict[str, Any] | None, **plan: Any) -> dict[str, Any]:
        whole = {
            "model": str(model),
            "extra": extra,
            "num_requests": NUM_REQUESTS,
            "num_device_blocks": NUM_DEVICE_BLOCKS,
            "max_tokens": 24,
            "rounds": ["ask"],
            **plan,
        }
        return run_plan(whole, out)

    return run_one


def test_tokens_are_the_same_after_a_restart_and_failed_loads(run: Run, disk_folder: Path) -> None:
    extra = {
        "kv_device": "hybrid",
        "disk_path": str(disk_folder),
        # So small a model computes faster than a disk reads.
        "load_cap": "off",
        "disk_bytes": "256MiB",
        "staging_bytes": "8MiB",
        "kv_max_cpu_memory": "8MiB",
    }
    (expected,) = run(None)["answers"]
    # Else equal tokens would prove nothing.
    assert len({tuple(it) for it in expected}) == NUM_REQUESTS
    first = run({**extra, "self_describing_kv_events": True}, tells_events=True)
    assert first["num_groups"] > 1
    assert first["answers"] == [expected]
    # Of blocks of full attention vLLM says the tokens too; of the others only that they are there.
    assert first["events"]["BlockStored CPU with tokens"] > 0
    assert first["events"]["BlockStored CPU"] > 0
    again = run(extra, fail_every=10, rounds=["ask", "reset", "ask"])
    assert [it == expected for it in again["answers"]] == [True] * 2
    assert again["num_failed"] > 0
    assert again["metrics"]["vllm:kvtier_hits:disk"] > 0
    assert again["metrics"]["vllm:kvtier_hits:host"] > 0


def test_two_ranks_with_windows_give_the_same_tokens(run: Run) -> None:
    extra = {"kv_device": "cpu", "kv_max_cpu_memory": "16MiB"}
    (expected,) = run(None, num_ranks=2)["answers"]
    again = run(extra, fail_every=10, rounds=["ask", "ask"], num_ranks=2)
    assert [it == expected for it in again["answers"]] == [True] * 2
    assert again["num_failed"] > 0
    assert again["metrics"]["vllm:kvtier_hits:host"] > 0
