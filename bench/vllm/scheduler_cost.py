"""What kvtier costs vLLM's scheduler thread, for a prompt of 32,768 tokens.

Usage: scheduler_cost.py [--rounds N] [--step-tokens N], with vLLM's Python, without a GPU. A
request that finds nothing: the lookup, then what is to be saved, step by step. A request that finds
all: the lookup, vLLM's question how much there is, and the load. Prints microseconds beside the
bound; exit 1 when one is missed. One thread.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvtier.adapters.vllm.connector_settings import parse_connector_settings
from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.request_chain import RequestRules
from kvtier.paged_geometry import FragmentPlace

PROMPT_TOKENS = 32768
BLOCK_BYTES = 4096
GROUP_SUFFIX = bytes(4)
# Tokens of a block -> microseconds for one request.
BOUNDS_US = {256: 100.0, 16: 2000.0}


def main() -> int:
    arguments = _parse_arguments()
    is_good = True
    for block_tokens, bound_us in BOUNDS_US.items():
        costs_us = measure(block_tokens, arguments.step_tokens, arguments.rounds)
        for name, cost_us in costs_us.items():
            is_good = is_good and cost_us <= bound_us
            print(
                f"{name:28} {block_tokens:4} tokens a block {cost_us:9.1f} us  <= {bound_us:.0f}  "
                f"{'reached' if cost_us <= bound_us else 'MISSED'}"
            )
    return 0 if is_good else 1


def measure(block_tokens: int, step_tokens: int, num_rounds: int) -> dict[str, float]:
    """Returns medians in microseconds, of requests that find nothing and of such that find all."""
    from kvtier.adapters.vllm.manager import KvtierManager

    num_blocks, step = PROMPT_TOKENS // block_tokens, step_tokens // block_tokens
    engine = open_engine(block_tokens, num_blocks)
    try:
        manager = KvtierManager(engine)
        missing = [make_request(f"miss {it}", num_blocks) for it in range(num_rounds)]
        misses_us = [time_us(functools.partial(miss, manager, it, step)) for it in missing]
        known = make_request("hit", num_blocks)
        put(engine, manager, known)
        hits_us = []
        for it in range(num_rounds):
            known.request_id = f"hit {it}"
            hits_us.append(time_us(functools.partial(hit, manager, known)))
            manager.complete_load([], context_of(known))
    finally:
        engine.close()
    return {
        "new prompt, found and saved": statistics.median(misses_us),
        "known prompt, loaded": statistics.median(hits_us),
    }


def miss(manager: Any, request: Any, step: int) -> None:
    manager.resolve(request, 0)
    keys = offload_keys(request)
    for first in range(0, len(keys), step):
        output = manager.prepare_store(keys[first : first + step], context_of(request))
        if len(output.keys_to_store) != step:
            raise SystemExit(f"{len(output.keys_to_store)} of {step} blocks are to be saved")


def hit(manager: Any, request: Any) -> None:
    manager.resolve(request, 0)
    keys, context = offload_keys(request), context_of(request)
    if manager.count_hits(keys, context) != len(keys):
        raise SystemExit("not all blocks were found")
    manager.prepare_load(keys, context)


def open_engine(block_tokens: int, num_blocks: int) -> EngineStore:
    engine = EngineStore(
        parse_connector_settings({"kv_max_cpu_memory": 4 * num_blocks * BLOCK_BYTES + (64 << 20)}),
        identity={"model": "m", "fingerprint": "f", "dtype": "bfloat16", "layout": "bench"},
        rules=RequestRules(),
    )
    tensor = np.zeros((num_blocks, BLOCK_BYTES), dtype=np.uint8)
    engine.attach(
        [tensor],
        [FragmentPlace(0, 0, BLOCK_BYTES, BLOCK_BYTES)],
        num_device_blocks=num_blocks,
        block_tokens=block_tokens,
    )
    return engine


def make_request(name: str, num_blocks: int) -> Any:
    hashes = [hashlib.sha256(f"{name} {it}".encode()).digest() for it in range(num_blocks)]
    return SimpleNamespace(
        request_id=name,
        block_hashes=hashes,
        num_prompt_tokens=PROMPT_TOKENS,
        kv_transfer_params=None,
        lora_request=None,
    )


def offload_keys(request: Any) -> list[bytes]:
    return [it + GROUP_SUFFIX for it in request.block_hashes]


def context_of(request: Any) -> Any:
    return SimpleNamespace(req_id=request.request_id)


def put(engine: EngineStore, manager: Any, request: Any) -> None:
    """Stores the blocks of a request as the worker would."""
    manager.resolve(request, 0)
    save = manager.prepare_store(offload_keys(request), context_of(request)).store_spec.groups[0]
    namespace = engine.namespace
    if namespace is None:
        raise SystemExit("the engine has no blocks")
    data = np.zeros((len(save.keys), namespace.block_bytes), dtype=np.uint8)
    result = namespace.put(save.keys, data, parent=save.parent)
    if result.num_accepted != len(save.keys):
        raise SystemExit(f"stored {result.num_accepted} of {len(save.keys)} blocks")


def time_us(call: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    call()
    return (time.perf_counter() - started_s) * 1e6


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=101, help="requests of each kind")
    parser.add_argument(
        "--step-tokens",
        type=int,
        default=2048,
        help="tokens of a step: vLLM's max_num_batched_tokens, 2048 to 16384 (default: 2048)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
