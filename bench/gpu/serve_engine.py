"""One engine of serve.py, in a process of its own, with vLLM's Python: asks and measures.

Usage: serve_engine.py PLAN FD. PLAN is JSON: a Workload's fields and kv_transfer, vLLM's
configuration of a connector or null. Commands come by standard input, a line each: `cold SET`,
`alone SET`, `revisit SET`, `check`, `digest SET`, `metrics`; its end ends the engine. Answers go to
the file descriptor FD, a line of JSON each, the first one when the engine is up. One thread.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The shapes of Qwen2.5-7B: weights are made up, so that nothing has to be downloaded.
MODEL = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
TOKEN_IDS = (1000, 150000)
# Several engines are up at once, and each takes its KV's room by its size in bytes.
DEVICE_SHARE = 0.2
SETTLE_S = 1.0
RESET_TRIES = 50


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What the engine is asked."""

    num_prompts: int
    prompt_tokens: int
    concurrent_requests: int
    device_bytes: int
    """Room for KV on the GPU: less than the prompts need."""
    long_tokens: int
    """Tokens to generate in the first two rounds."""
    short_tokens: int
    """Tokens to generate where loading is to matter most."""
    num_short_rounds: int
    num_singles: int


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One request as its client saw it."""

    ttft_s: float
    total_s: float
    num_tokens: int
    num_cached_tokens: int

    @property
    def tpot_s(self) -> float:
        return (self.total_s - self.ttft_s) / max(1, self.num_tokens - 1)


class Client:
    """Asks one engine. Its prompts are one set of several, the same for all engines."""

    def __init__(self, engine: Any, workload: Workload, *, set_name: str, order: str = "") -> None:
        self._engine = engine
        self._workload = workload
        self._num_asked = 0
        self._order = random.Random(order)
        source = random.Random(set_name)
        self.prompts = [self._make_prompt(source) for _ in range(workload.num_prompts)]

    async def ask(self, prompt: Sequence[int], num_tokens: int) -> Answer:
        from vllm import SamplingParams

        sampling = SamplingParams(
            max_tokens=num_tokens, ignore_eos=True, temperature=0.0, detokenize=False
        )
        self._num_asked += 1
        start_s = time.perf_counter()
        first_s, last = 0.0, None
        async for output in self._engine.generate(
            {"prompt_token_ids": prompt}, sampling, request_id=f"{id(self)}-{self._num_asked}"
        ):
            last = output
            first_s = first_s or time.perf_counter()
        end_s = time.perf_counter()
        assert last is not None
        return Answer(
            ttft_s=first_s - start_s,
            total_s=end_s - start_s,
            num_tokens=len(last.outputs[0].token_ids),
            num_cached_tokens=last.num_cached_tokens or 0,
        )

    async def visit_all(self, num_tokens: int) -> tuple[dict[str, float], list[int]]:
        """Asks every prompt once, in a new order. Returns the figures, and that order."""
        gate = asyncio.Semaphore(self._workload.concurrent_requests)

        async def ask(index: int) -> Answer:
            async with gate:
                return await self.ask(self.prompts[index], num_tokens)

        order = list(range(len(self.prompts)))
        self._order.shuffle(order)
        start_s = time.perf_counter()
        answers = await asyncio.gather(*[ask(index) for index in order])
        return self._sum_up(answers, time.perf_counter() - start_s), order

    async def ask_alone(self, indices: Sequence[int], num_tokens: int) -> list[float]:
        """Returns the times to first token of requests that come one after the other."""
        return [(await self.ask(self.prompts[it], num_tokens)).ttft_s for it in indices]

    async def check_bytes(self) -> dict[str, int]:
        """Compares loaded KV with computed KV, block by block, over all layers.

        With made-up weights equal tokens would prove nothing. The end of a prompt is always
        computed again, alone, and may be rounded otherwise.
        """
        prompt = self.prompts[0]
        await self._empty_device()
        await self.ask(prompt, self._workload.short_tokens)
        await asyncio.sleep(SETTLE_S)
        computed = set(await self._digest_blocks())
        await self._empty_device()
        answer = await self.ask(prompt, self._workload.short_tokens)
        loaded = set(await self._digest_blocks())
        return {
            "num_blocks": len(computed),
            "equal_blocks": len(computed & loaded),
            "num_cached_tokens": answer.num_cached_tokens,
        }

    async def digest_bytes(self) -> dict[str, Any]:
        """Tells of the KV of one prompt, computed or loaded, as another engine can compare it."""
        await self._empty_device()
        answer = await self.ask(self.prompts[0], self._workload.short_tokens)
        await asyncio.sleep(SETTLE_S)
        return {
            "digests": sorted(await self._digest_blocks()),
            "num_cached_tokens": answer.num_cached_tokens,
        }

    async def _empty_device(self) -> None:
        await asyncio.sleep(SETTLE_S)
        for _ in range(RESET_TRIES):
            if await self._engine.reset_prefix_cache():
                break
            await asyncio.sleep(SETTLE_S / 10)
        else:
            raise RuntimeError("vLLM does not empty its prefix cache: requests are still running")
        await self._engine.collective_rpc("clear_blocks")

    async def _digest_blocks(self) -> list[str]:
        (digests,) = await self._engine.collective_rpc("digest_blocks")
        return list(digests)

    def _make_prompt(self, source: random.Random) -> list[int]:
        return [source.randrange(*TOKEN_IDS) for _ in range(self._workload.prompt_tokens)]

    def _sum_up(self, answers: Sequence[Answer], wall_s: float) -> dict[str, float]:
        num_asked = len(answers) * self._workload.prompt_tokens
        ttft_s = sorted(it.ttft_s for it in answers)
        return {
            "ttft_mean_s": statistics.mean(ttft_s),
            "ttft_p99_s": ttft_s[min(len(ttft_s) - 1, int(0.99 * len(ttft_s)))],
            "tpot_ms": 1e3 * statistics.mean(it.tpot_s for it in answers),
            "tokens_per_s": sum(it.num_tokens for it in answers) / wall_s,
            "prompt_tokens_per_s": num_asked / wall_s,
            "cached_share": sum(it.num_cached_tokens for it in answers) / num_asked,
        }


async def revisit(client: Client, workload: Workload) -> dict[str, Any]:
    """Returns the figures of prompts whose KV was saved: of each round, and of single requests."""
    figures: dict[str, Any] = {}
    figures["revisit"], _ = await client.visit_all(workload.long_tokens)
    rounds = []
    order: list[int] = []
    for _ in range(workload.num_short_rounds):
        one, order = await client.visit_all(workload.short_tokens)
        rounds.append(one)
    figures["short"] = {name: statistics.median(it[name] for it in rounds) for name in rounds[0]}
    # Those asked first were pushed out of the device by those after them.
    asked = order[: workload.num_singles]
    figures["single_ttft_s"] = await client.ask_alone(asked, workload.short_tokens)
    again = [asked[-1]] * workload.num_singles
    figures["device_hit_ttft_s"] = await client.ask_alone(again, workload.short_tokens)
    return figures


async def warm_up(client: Client, workload: Workload) -> None:
    """The first prompts of an engine pay for much that is done once."""
    for prompt in client.prompts[:2]:
        await client.ask(prompt, workload.short_tokens)


def make_engine(workload: Workload, kv_transfer: dict[str, Any] | None) -> Any:
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    model = Path(tempfile.gettempdir(), "serve-model")
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(MODEL))
    arguments = AsyncEngineArgs(
        model=str(model),
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=MODEL["max_position_embeddings"],
        max_num_seqs=workload.concurrent_requests,
        gpu_memory_utilization=DEVICE_SHARE,
        kv_cache_memory_bytes=workload.device_bytes,
        enable_prefix_caching=True,
        worker_extension_cls="serve_blocks.ServedBlocks",
        kv_transfer_config=None if kv_transfer is None else KVTransferConfig(**kv_transfer),
        seed=0,
    )
    return AsyncLLM.from_engine_args(arguments)


def read_metrics() -> dict[str, float]:
    """Returns what vLLM tells Prometheus of kvtier, and of preemptions: {"name{label}": value}."""
    from prometheus_client import REGISTRY

    found = {}
    for metric in REGISTRY.collect():
        for sample in metric.samples:
            if sample.name.startswith(("vllm:kvtier_", "vllm:num_preemptions")):
                labels = [it for name, it in sample.labels.items() if name in {"tier", "reason"}]
                found[f"{sample.name}{{{','.join(labels)}}}"] = float(sample.value)
    return {name: value for name, value in found.items() if "bucket" not in name}


async def answer(command: str, engine: Any, workload: Workload) -> dict[str, Any]:
    word, _, name = command.strip().partition(" ")
    client = Client(engine, workload, set_name=name or word, order=command)
    if word == "check":
        return await client.check_bytes()
    if word == "digest":
        return await client.digest_bytes()
    if word == "metrics":
        await asyncio.sleep(2 * SETTLE_S)
        return read_metrics()
    if word == "alone":
        singles = range(workload.num_singles)
        return {"new_ttft_s": await client.ask_alone(singles, workload.short_tokens)}
    if word == "revisit":
        return await revisit(client, workload)
    cold, _ = await client.visit_all(workload.long_tokens)
    return {"cold": cold}


async def main(plan_path: str, answers_fd: str) -> None:
    plan: dict[str, Any] = json.loads(Path(plan_path).read_text())
    kv_transfer = plan.pop("kv_transfer")
    workload = Workload(**plan)
    # The engine's process finds the worker's extension by it.
    folder = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
    start_s = time.perf_counter()
    engine = make_engine(workload, kv_transfer)
    from vllm import __version__ as vllm_version

    try:
        with os.fdopen(int(answers_fd), "w", buffering=1) as answers:
            boot_s = time.perf_counter() - start_s
            await warm_up(Client(engine, workload, set_name="warm-up"), workload)
            answers.write(json.dumps({"vllm_version": vllm_version, "boot_s": boot_s}) + "\n")
            while command := await asyncio.to_thread(sys.stdin.readline):
                answers.write(json.dumps(await answer(command, engine, workload)) + "\n")
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
