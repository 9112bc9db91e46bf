"""Blocks with payloads of their own for measurements: put as one chain, checked when they return.

Not thread-safe.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from kvtier.bench.payload import U8, PayloadPattern, payload_words
from kvtier.bench.replay import tier_counters

if TYPE_CHECKING:
    from kvtier import BlockStore, Namespace

CALL_BYTES = 32 << 20
_CALL_BLOCKS_MAX = 4096
_BACKLOG_POLL_S = 0.0005


class BenchmarkError(RuntimeError):
    """The store did not do what the measurement needs, so there is no figure."""


def bench_namespace(
    store: BlockStore, block_bytes: int, *, model: str = "kvtier-bench", salt: str | None = None
) -> Namespace:
    """One token a block: a million keys come from one call."""
    return store.namespace(
        model=model, block_bytes=block_bytes, block_tokens=1, fingerprint="none", salt=salt
    )


def fresh_salt() -> str:
    """So that blocks which an earlier run left in the directory are not this run's hits."""
    return uuid.uuid4().hex


class BlockSource:
    """`num_blocks` blocks of one chain, whose bytes are made ahead: making them is not timed."""

    def __init__(self, namespace: Namespace, num_blocks: int) -> None:
        self.namespace = namespace
        self.block_bytes = namespace.block_bytes
        self.keys: U8 = namespace.keys(np.arange(num_blocks, dtype=np.int64))
        self._words = payload_words(self.keys)
        self._pattern = PayloadPattern(self.block_bytes)
        self.data: U8 = np.empty((num_blocks, self.block_bytes), dtype=np.uint8)
        self._pattern.fill(self._words, self.data)

    @property
    def num_blocks(self) -> int:
        return len(self.keys)

    @property
    def num_bytes(self) -> int:
        return self.data.nbytes

    def put_all(
        self,
        store: BlockStore,
        *,
        backlog_bytes_max: int | None = None,
        call_bytes: int = CALL_BYTES,
    ) -> None:
        """Puts the chain call by call; waits while the disk's backlog is larger than it may be.

        Raises BenchmarkError when a block was declined.
        """
        call_blocks = max(1, min(call_bytes // self.block_bytes, _CALL_BLOCKS_MAX))
        for first in range(0, self.num_blocks, call_blocks):
            stop = min(first + call_blocks, self.num_blocks)
            parent = self.keys[first - 1] if first else None
            result = self.namespace.put(self.keys[first:stop], self.data[first:stop], parent=parent)
            if result.num_accepted != stop - first:
                raise BenchmarkError(f"put declined blocks: {set(result.outcomes)}")
            if backlog_bytes_max is not None:
                wait_for_backlog(store, backlog_bytes_max)

    def check(self, first: int, out: U8) -> int:
        """Returns the number of wrong bytes among the blocks from `first` on."""
        return self._pattern.check(self._words[first : first + len(out)], out).wrong_bytes


def wait_for_backlog(
    store: BlockStore, backlog_bytes_max: int, pause: Callable[[float], None] = time.sleep
) -> None:
    """Waits until no more than that waits for the disk."""
    while tier_counters(store)["disk"]["backlog_bytes"] > backlog_bytes_max:
        pause(_BACKLOG_POLL_S)
