"""Looks up one request in all groups at once, and says which blocks a hit would load.

Pure functions on what they are given; used by the scheduler's thread only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvtier.adapters.vllm.request_blocks import RequestBlocks
from kvtier.adapters.vllm.request_chain import RequestChain
from kvtier.adapters.vllm.stored_group import StoredGroup
from kvtier.outcome import Tier
from kvtier.results import U8, Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHit:
    """What was found of one group: for a block each from `start` on, its key and its tier."""

    group: StoredGroup
    start: int
    keys: U8
    tiers: U8

    @property
    def mask(self) -> Mask:
        mask: Mask = self.tiers != 0
        return mask

    @property
    def far(self) -> Mask:
        """Returns which of them lie on disk only."""
        far: Mask = self.tiers == int(Tier.DISK)
        return far

    @property
    def read_bytes(self) -> int:
        """Returns how much of them is to be read from disk."""
        return int(np.count_nonzero(self.far)) * self.group.namespace.block_bytes

    @property
    def end_tokens(self) -> int:
        """Returns where they end in the request."""
        return (self.start + len(self.tiers)) * self.group.block_tokens

    def cut(self, start_block: int, end_block: int) -> "GroupHit":
        """Returns what of it lies in these blocks of the request."""
        first = max(0, start_block - self.start)
        cut = slice(first, max(first, end_block - self.start))
        return GroupHit(
            group=self.group,
            start=self.start + first,
            keys=self.keys[cut],
            tiers=self.tiers[cut],
        )


def look_up(
    groups: Sequence[StoredGroup],
    blocks: RequestBlocks,
    *,
    start_tokens: int,
    gain_tokens_min: int,
) -> list[GroupHit]:
    """Returns what is there beyond `start_tokens`, a hit a group; none when it is not worth a load.

    vLLM finds the end that all groups agree on. It asks a group that needs all blocks for the
    unbroken run, so nothing beyond the shortest such run is looked up; of a group with a window it
    asks one block more where a drafter's last block is left out.
    Raises KvtierError (the store does not answer).
    """
    end_tokens = max(
        chain.num_blocks * group.block_tokens
        for group, chain in zip(groups, blocks.chains, strict=True)
    )
    hits: dict[int, GroupHit] = {}
    for index in sorted(range(len(groups)), key=lambda it: not groups[it].is_prefix):
        group, chain = groups[index], blocks.chains[index]
        start = start_tokens // group.block_tokens
        if group.is_prefix:
            hit = _look_up_prefix(group, chain, start)
            end_tokens = min(end_tokens, (start + len(hit.tiers)) * group.block_tokens)
            if end_tokens - start_tokens < max(1, gain_tokens_min):
                return []
        else:
            end = min(chain.num_blocks, -(-end_tokens // group.block_tokens) + 1)
            hit = _look_up_each(group, chain, start, end)
        hits[index] = hit
    return [hits[index] for index in range(len(groups))]


def choose_needed(hits: Sequence[GroupHit], start_tokens: int) -> list[GroupHit]:
    """Returns which of the blocks that were found the longest hit of all groups would load.

    vLLM settles the end of the hit by itself; a block more or less here costs a prefetch.
    """
    ends = [it.end_tokens for it in hits if it.group.is_prefix]
    end_tokens = min(ends, default=max(it.end_tokens for it in hits))
    windowed = [it for it in hits if not it.group.is_prefix]
    settled = -1
    while settled != end_tokens:
        settled = end_tokens
        for hit in windowed:
            end_tokens = min(end_tokens, _find_window_end(hit, end_tokens, start_tokens))
    return [_cut_needed(it, end_tokens) for it in hits]


def _look_up_prefix(group: StoredGroup, chain: RequestChain, start: int) -> GroupHit:
    end = max(start, chain.num_blocks)
    keys = chain.keys(group.namespace, start, end)
    found = group.namespace.lookup(keys)
    num_blocks = found.num_blocks
    chain.set_found(start, np.ones(num_blocks, dtype=np.bool_))
    return GroupHit(
        group=group, start=start, keys=keys[:num_blocks], tiers=found.tiers[:num_blocks]
    )


def _look_up_each(group: StoredGroup, chain: RequestChain, start: int, end: int) -> GroupHit:
    keys = chain.keys(group.namespace, start, max(start, end))
    found: Any = group.namespace.lookup(keys, prefix=False)
    hit = GroupHit(group=group, start=start, keys=keys, tiers=found.tiers)
    chain.set_found(start, hit.mask)
    return hit


def _find_window_end(hit: GroupHit, end_tokens: int, start_tokens: int) -> int:
    """Returns the last end up to `end_tokens` before which a whole window was found."""
    window_blocks = hit.group.window_blocks
    assert window_blocks is not None
    mask = hit.mask
    num_together = 0
    first = min(len(mask), -(-end_tokens // hit.group.block_tokens) - hit.start) - 1
    for index in range(first, -1, -1):
        num_together = num_together + 1 if mask[index] else 0
        if num_together == window_blocks:
            return min(end_tokens, (hit.start + index + num_together) * hit.group.block_tokens)
    # What is left of the window lies before the start, where the engine has its own.
    if num_together == 0:
        return start_tokens
    return min(end_tokens, (hit.start + num_together) * hit.group.block_tokens)


def _cut_needed(hit: GroupHit, end_tokens: int) -> GroupHit:
    end = -(-end_tokens // hit.group.block_tokens)
    window_blocks = hit.group.window_blocks
    return hit.cut(hit.start if window_blocks is None else end - window_blocks, end)
