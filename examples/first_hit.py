"""Computes KV once, and finds it again in the next run: run it twice.

Single-threaded. A stand-in computes the blocks; an engine would copy its own.
"""

import hashlib

import numpy as np

import kvtier

BLOCK_TOKENS, BLOCK_BYTES = 16, 64 * 1024
PROMPT = list(range(1000, 1000 + 8 * BLOCK_TOKENS))


def compute_block(tokens: list[int]) -> np.ndarray:
    """Stands for the model: uint8[BLOCK_BYTES] that follow from all tokens up to its end."""
    digest = hashlib.sha256(str(tokens).encode()).digest()
    return np.frombuffer(digest * (BLOCK_BYTES // len(digest)), np.uint8)


with kvtier.open("kv", host_bytes="64MiB", disk_bytes="256MiB") as store:
    ns = store.namespace(
        model="example", fingerprint="v1", block_bytes=BLOCK_BYTES, block_tokens=BLOCK_TOKENS
    )
    keys = ns.keys(PROMPT)  # one key a block, for everything up to its end
    kv = np.empty((len(keys), BLOCK_BYTES), np.uint8)
    num_hits = ns.get(keys, kv).num_blocks  # kv[:num_hits] is exact, the rest untouched
    for i in range(num_hits, len(keys)):
        kv[i] = compute_block(PROMPT[: (i + 1) * BLOCK_TOKENS])
    ns.put(keys[num_hits:], kv[num_hits:], parent=keys[num_hits - 1] if num_hits else None)
    store.flush()  # from here on a power loss takes nothing
    assert bytes(kv[-1]) == bytes(compute_block(PROMPT))
    print(f"{num_hits} blocks found, {len(keys) - num_hits} computed")
