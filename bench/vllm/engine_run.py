"""One run of a vLLM engine with kvtier, in a process of its own: asks all documents a few times.

Usage: engine_run.py PLAN OUT, both JSON files, with vLLM's Python. A plan has model, texts (one
document each), question, num_passes, num_prompt_tokens, num_answer_tokens, block_tokens and extra
(kv_connector_extra_config). OUT gets, for each pass, an answer, a time to first token and the
tokens not computed for each document, and the tiers' counters after it.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTEXT_TOKENS = 4096
CONNECTOR = {
    "kv_connector": "KvtierConnector",
    "kv_connector_module_path": "kvtier.adapters.vllm.connector",
    "kv_role": "kv_both",
}


def make_engine(plan: dict[str, Any]) -> Any:
    from vllm import LLM

    # Room for one document and a half: the next document pushes it out.
    num_blocks = plan["num_prompt_tokens"] * 3 // 2 // plan["block_tokens"]
    return LLM(
        model=plan["model"],
        # In lower precision a hit changes rounding, and so may change a token.
        dtype="float32",
        enforce_eager=True,
        block_size=plan["block_tokens"],
        max_model_len=min(CONTEXT_TOKENS, num_blocks * plan["block_tokens"]),
        max_num_seqs=2,
        # One is vLLM's own and never used.
        num_gpu_blocks_override=num_blocks + 1,
        disable_log_stats=False,
        kv_transfer_config={**CONNECTOR, "kv_connector_extra_config": plan["extra"]},
    )


def make_prompts(plan: dict[str, Any], engine: Any) -> list[dict[str, list[int]]]:
    tokenizer = engine.get_tokenizer()
    ending = tokenizer.encode(plan["question"])
    room = plan["num_prompt_tokens"] - len(ending)
    return [{"prompt_token_ids": tokenizer.encode(text)[:room] + ending} for text in plan["texts"]]


def read_counters(engine: Any, ask_short: Callable[[], object]) -> dict[str, float]:
    from kvtier.adapters.vllm.store_metrics import INTERVAL_S

    # The engine tells of what it did with its steps, and not with each of them.
    time.sleep(INTERVAL_S)
    ask_short()
    counters = {}
    for metric in engine.get_metrics():
        tier = metric.labels.get("tier")  # Others are of the engine, or by reason.
        if metric.name.startswith("vllm:kvtier_") and hasattr(metric, "value") and tier:
            name = metric.name.removeprefix("vllm:kvtier_")
            counters[f"{tier}_{name}"] = metric.value
    return counters


def main(plan_path: str, out_path: str) -> None:
    plan: dict[str, Any] = json.loads(Path(plan_path).read_text())
    from vllm import SamplingParams

    engine = make_engine(plan)
    prompts = make_prompts(plan, engine)
    sampling = SamplingParams(temperature=0, max_tokens=plan["num_answer_tokens"])

    def ask_short() -> None:
        engine.generate([{"prompt_token_ids": [1] * 16}], sampling, use_tqdm=False)

    # The first prompt of an engine pays for much that is done once.
    ask_short()
    passes = []
    for _ in range(plan["num_passes"]):
        answers, ttft_s, num_cached = [], [], []
        for prompt in prompts:
            (output,) = engine.generate([prompt], sampling, use_tqdm=False)
            answers.append(output.outputs[0].text)
            ttft_s.append(output.metrics.first_token_latency)
            num_cached.append(output.num_cached_tokens or 0)
        counters = read_counters(engine, ask_short)
        passes.append(
            {
                "answers": answers,
                "ttft_s": ttft_s,
                "num_cached": num_cached,
                "counters": counters,
            }
        )
    num_tokens = [len(prompt["prompt_token_ids"]) for prompt in prompts]
    Path(out_path).write_text(json.dumps({"passes": passes, "num_tokens": num_tokens}))


if __name__ == "__main__":
    main(*sys.argv[1:])
