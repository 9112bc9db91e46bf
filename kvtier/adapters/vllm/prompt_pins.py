"""PromptPins: prompts that their requests want kept from eviction, or no longer kept.

Not thread-safe: used by the scheduler's thread only. It moves no bytes.
"""

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np

from kvtier.adapters.vllm.request_blocks import RequestBlocks
from kvtier.adapters.vllm.request_chain import RequestChain
from kvtier.adapters.vllm.stored_group import StoredGroup
from kvtier.core_log import warn_once
from kvtier.errors import KvtierError

WISHES_MAX: Final = 256
TRIES_MAX: Final = 64
"""Of a request that has ended; each save that ends is a reason for one."""
TURN_WISHES_MAX: Final = 8
"""Looked at in one turn of the scheduler, which waits meanwhile."""
UNPINS_MAX: Final = 1024
"""How many pins of one block are ended at once."""


class PromptPins:
    """A block is pinned once it is stored, which may be long after its request has ended."""

    def __init__(self) -> None:
        self._wishes: dict[str, _Wish] = {}

    def begin(self, request_id: str, groups: Sequence[StoredGroup], blocks: RequestBlocks) -> None:
        """Takes in what a request wishes; what it no longer wants kept is unpinned at once."""
        if blocks.rules.pins is None:
            return
        if not blocks.rules.pins:
            for pending_id in [it for it, wish in self._wishes.items() if wish.is_of(blocks)]:
                del self._wishes[pending_id]
            unpin(groups, blocks)
            return
        if len(self._wishes) >= WISHES_MAX:
            self._give_up(next(iter(self._wishes)))
        self._wishes[request_id] = _Wish(groups, blocks)

    def settle(self, ended_id: str | None = None) -> None:
        """Pins what has been stored by now. ended_id: the request that has just ended, if any."""
        if ended_id in self._wishes:
            self._wishes[ended_id].has_ended = True
        for request_id in list(itertools.islice(self._wishes, TURN_WISHES_MAX)):
            # Those that were not looked at come first the next time.
            wish = self._wishes[request_id] = self._wishes.pop(request_id)
            if wish.pin():
                del self._wishes[request_id]
            elif wish.num_tries_left == 0:
                self._give_up(request_id)

    def clear(self) -> None:
        """What was wished is of no use any more."""
        self._wishes.clear()

    def _give_up(self, request_id: str) -> None:
        wish = self._wishes.pop(request_id)
        warn_once(
            ("pins", "given up"),
            f"of a prompt that is to be pinned only {wish.num_pinned} of {wish.num_blocks} blocks "
            "are: the others were not stored, or a quarter of the tier is pinned",
        )


class _Wish:
    def __init__(self, groups: Sequence[StoredGroup], blocks: RequestBlocks) -> None:
        self._parts = [
            (group, chain, np.zeros(chain.num_prompt_blocks, dtype=np.bool_))
            for group, chain in zip(groups, blocks.chains, strict=True)
        ]
        self.has_ended = False
        self.num_tries_left = TRIES_MAX

    def is_of(self, blocks: RequestBlocks) -> bool:
        """Returns whether these are blocks of the same prompt: hashes are chained."""
        return [self._last_hash(it) for _, it, _ in self._parts] == [
            self._last_hash(it) for it in blocks.chains
        ]

    @staticmethod
    def _last_hash(chain: RequestChain) -> list[bytes]:
        num_blocks = min(chain.num_prompt_blocks, chain.num_blocks)
        return [*chain.hashes(max(0, num_blocks - 1), num_blocks)]

    @property
    def num_blocks(self) -> int:
        return sum(len(is_pinned) for _, _, is_pinned in self._parts)

    @property
    def num_pinned(self) -> int:
        return sum(int(is_pinned.sum()) for _, _, is_pinned in self._parts)

    def pin(self) -> bool:
        """Pins what is stored and not pinned yet; returns whether nothing is left to do."""
        self.num_tries_left -= self.has_ended
        for group, chain, is_pinned in self._parts:
            is_missing = ~is_pinned[: chain.num_blocks]
            if not is_missing.any():
                continue
            keys = chain.keys(group.namespace, 0, len(is_missing))
            try:
                found = group.namespace.lookup(keys[is_missing], prefix=False).mask
                (indices,) = np.nonzero(is_missing)
                num_pinned = group.namespace.pin(keys[indices[found]])
            except KvtierError:
                return True  # The store is closed: nothing is kept any more.
            is_pinned[indices[found][:num_pinned]] = True
        return self.has_ended and self._is_whole()

    def _is_whole(self) -> bool:
        """Of a window only those blocks are stored that may end a hit: which, is not known here."""
        whole = [bool(is_pinned.all()) for group, _, is_pinned in self._parts if group.is_prefix]
        return all(whole) and bool(whole)


def unpin(groups: Sequence[StoredGroup], blocks: RequestBlocks) -> None:
    """Ends the pins of a prompt's blocks, those that it shares with other prompts included."""
    for group, chain in zip(groups, blocks.chains, strict=True):
        num_blocks = min(chain.num_prompt_blocks, chain.num_blocks)
        keys = chain.keys(group.namespace, 0, num_blocks)
        try:
            for _ in range(UNPINS_MAX):
                if group.namespace.unpin(keys) == 0:
                    break
        except KvtierError:
            return
