"""An engine's paged tensors in CPU memory, and a store for their blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import kvtier

MIB = 1 << 20
NUM_ROWS = 32
NUM_LAYERS = 5
LAYER_SHAPE = (NUM_ROWS, 2, 16, 48)  # Rows of K and V, tokens, bytes of one token.
BLOCK_BYTES = NUM_LAYERS * 2 * 16 * 48


def make_tensors(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, LAYER_SHAPE, dtype=np.uint8) for _ in range(NUM_LAYERS)]


def rows_of(tensors: list[np.ndarray], block_ids: list[int]) -> np.ndarray:
    """uint8[num_blocks, BLOCK_BYTES]: the bytes of these rows in host order."""
    return np.stack(
        [np.concatenate([it[block_id].reshape(-1) for it in tensors]) for block_id in block_ids]
    )


def open_namespace(
    path: Path | None = None, **settings: object
) -> tuple[kvtier.BlockStore, kvtier.Namespace]:
    store = kvtier.open(path, **{"host_bytes": 8 * MIB, "disk_bytes": 64 * MIB, **settings})
    return store, store.namespace(model="m", block_bytes=BLOCK_BYTES, fingerprint="f")
