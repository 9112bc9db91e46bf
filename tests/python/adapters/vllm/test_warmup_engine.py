"""`kvtier warmup` against a real vLLM on a CPU: computed, stored, pinned, and given free again."""

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_runs import ENVIRONMENT, write_model

from kvtier.bench.serve.engine_process import EngineProcess, engine_environment
from kvtier.cli.main import main
from kvtier.monitor import Monitor

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

START_S = 300
PROMPT_TOKENS = 160
NUM_PROMPTS = 4


@pytest.mark.timeout(3 * START_S)
def test_prompts_are_stored_and_pinned_and_given_free_again(
    tmp_path: Path, disk_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "model")
    prompts = tmp_path / "prompts.jsonl"
    lines = [
        json.dumps({"prompt": [(7 * i + 13 * token) % 200 + 3 for token in range(PROMPT_TOKENS)]})
        for i in range(NUM_PROMPTS)
    ]
    prompts.write_text("\n".join(lines))
    extra = {
        "kv_device": "hybrid",
        "disk_path": str(disk_folder / "kv"),
        "kv_max_cpu_memory": "8MiB",
        "disk_bytes": "64MiB",
        "staging_bytes": "8MiB",
        "allow_pins": True,
    }
    transfer = {
        "kv_connector": "KvtierConnector",
        "kv_role": "kv_both",
        "kv_connector_module_path": "kvtier.adapters.vllm.connector",
        "kv_connector_extra_config": extra,
    }
    # The model has no tokenizer; ids go in.
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
    command += ["--dtype", "float32", "--enforce-eager", "--skip-tokenizer-init"]
    command += ["--kv-transfer-config", json.dumps(transfer)]

    def warm_up(url: str, *wishes: str) -> dict[str, Any]:
        arguments = ["--url", url, "--prompt-file", str(prompts), *wishes]
        assert main(["warmup", "--json", *arguments]) == 0
        summary: dict[str, Any] = json.loads(capsys.readouterr().out)
        return summary

    async def run() -> None:
        environment = {**engine_environment(), **ENVIRONMENT}
        log = tmp_path / "vllm.log"
        async with EngineProcess.start(command, environment=environment, log=log) as engine:
            await engine.wait_until_ready(START_S)
            url = str(engine.url)
            first = await asyncio.to_thread(warm_up, url)
            assert (first["done"], first["left"], first["refused"]) == (NUM_PROMPTS, 0, [])
            assert first["prompt_tokens"] == NUM_PROMPTS * PROMPT_TOKENS
            await asyncio.to_thread(warm_up, url, "--pin")
            pinned = await wait_for_pins(is_any=True)
            stored = pinned["stats"]["tiers"]["host"]["blocks"]
            assert stored >= NUM_PROMPTS
            await asyncio.to_thread(warm_up, url, "--unpin")
            await wait_for_pins(is_any=False)

    async def wait_for_pins(*, is_any: bool) -> dict[str, Any]:
        """The store tells its state four times a second; the test's timeout bounds the wait."""
        monitor = Monitor(find_store(disk_folder / "kv"))
        while True:
            stats: dict[str, Any] = monitor.get_stats()
            assert stats["state"] == "running"
            tiers = stats["stats"]["tiers"].values()
            if any(tier["pinned_bytes"] for tier in tiers) == is_any:
                return stats
            await asyncio.sleep(0.1)

    asyncio.run(run())


def find_store(folder: Path) -> Path:
    """The engine's own folder beneath disk_path."""
    (lock,) = folder.rglob("kvtier.lock")
    return lock.parent
