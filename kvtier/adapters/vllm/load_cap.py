"""How much of a hit is loaded: no more than what the engine could not compute in the same time.

Pure functions on what they are given; thread-safe.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kvtier.adapters.vllm.cut_reason import CutReason
from kvtier.adapters.vllm.group_lookup import GroupHit, choose_needed

UNKNOWN_LOAD_S_MAX: Final = 0.25
"""A load that takes longer waits until the engine was seen to compute a prompt: the first one is
computed, which tells whether the others should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast things go now. Rates are positive; None: not known yet."""

    read_bytes_per_s: float | None
    tokens_per_s: float | None
    read_queue_bytes: int
    """To be read from disk before anything else is."""
    compute_wait_s: float
    """Until the engine would begin to compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CappedHit:
    """How many blocks of each group to load, and why not all of them."""

    num_blocks: tuple[int, ...]
    reason: CutReason | None


def cap_hit(hits: Sequence[GroupHit], start_tokens: int, pace: Pace, margin: float) -> CappedHit:
    """Returns how much of a hit to load.

    margin: a load may take this many times as long as computing what it spares. What lies in host
    memory is loaded in any case, as far as nothing on disk is needed before it. A hit of one group
    of full attention is shortened; of others it is all or nothing.
    """
    whole = CappedHit(num_blocks=tuple(len(it.tiers) for it in hits), reason=None)
    if pace.read_bytes_per_s is None:
        return whole
    if len(hits) == 1 and hits[0].group.is_prefix:
        return _cap_prefix(hits[0], pace, margin)
    needed = choose_needed(hits, start_tokens)
    read_bytes = sum(it.read_bytes for it in needed)
    num_tokens = max(it.end_tokens for it in needed) - start_tokens
    reason = _judge(read_bytes, num_tokens, pace, margin)
    return whole if reason is None else CappedHit(num_blocks=(0,) * len(hits), reason=reason)


def _cap_prefix(hit: GroupHit, pace: Pace, margin: float) -> CappedHit:
    assert pace.read_bytes_per_s is not None
    far = hit.far
    num_blocks = len(far)
    read_bytes = np.cumsum(far, dtype=np.int64) * hit.group.namespace.block_bytes
    reason = _judge(
        int(read_bytes[-1]) if num_blocks else 0, num_blocks * hit.group.block_tokens, pace, margin
    )
    if reason is None:
        return CappedHit(num_blocks=(num_blocks,), reason=None)
    num_near = int(np.argmax(far))
    if pace.tokens_per_s is None:
        return CappedHit(num_blocks=(num_near,), reason=reason)
    num_tokens = np.arange(1, num_blocks + 1) * hit.group.block_tokens
    load_s = (pace.read_queue_bytes + read_bytes) / pace.read_bytes_per_s
    is_worth = load_s <= margin * (pace.compute_wait_s + num_tokens / pace.tokens_per_s)
    worth = np.flatnonzero(is_worth)
    num_worth = int(worth[-1]) + 1 if len(worth) else 0
    return CappedHit(num_blocks=(max(num_near, num_worth),), reason=reason)


def _judge(read_bytes: int, num_tokens: int, pace: Pace, margin: float) -> CutReason | None:
    """Returns why so much should not be loaded; None: it should."""
    assert pace.read_bytes_per_s is not None
    if read_bytes == 0:
        return None
    alone_s = read_bytes / pace.read_bytes_per_s
    load_s = alone_s + pace.read_queue_bytes / pace.read_bytes_per_s
    if pace.tokens_per_s is None:
        return CutReason.UNKNOWN if load_s > UNKNOWN_LOAD_S_MAX else None
    compute_s = num_tokens / pace.tokens_per_s
    if load_s <= margin * (pace.compute_wait_s + compute_s):
        return None
    return CutReason.DISK if alone_s > margin * compute_s else CutReason.QUEUE
