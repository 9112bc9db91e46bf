"""RequestBlocks: the blocks of one request in all groups, and what holds for the request.

Not thread-safe: used by the scheduler's thread only.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from kvtier.adapters.vllm.block_hashes import view_hashes
from kvtier.adapters.vllm.cut_reason import CutReason
from kvtier.adapters.vllm.request_chain import (
    NOTHING_FOUND,
    PrefetchWait,
    RequestChain,
    RequestRules,
)
from kvtier.adapters.vllm.stored_group import GROUP_BYTES, StoredGroup


class RequestBlocks:
    """One chain a group, in the order of the groups."""

    def __init__(
        self, request: Any, groups: Sequence[StoredGroup], *, context: bytes, rules: RequestRules
    ) -> None:
        self.chains = tuple(
            RequestChain(
                view_hashes(request.block_hashes, group.num_hashes),
                context=context,
                num_prompt_blocks=request.num_prompt_tokens // group.block_tokens,
            )
            for group in groups
        )
        self.rules = rules
        self.is_pending = False
        """What was found is not near enough yet: ask again."""
        self.wait: PrefetchWait | None = None
        """Set when the request's prefetch was started; there is one for each request."""
        self.start_tokens = 0
        """What the engine had of it by itself when it was looked up last."""
        self.read_bytes = 0
        """Of what would be loaded, so much is on disk only."""
        self.cut: tuple[CutReason, int] | None = None
        """Why and by how many tokens the last lookup's hit was shortened."""
        self.announced_at: tuple[tuple[int, bytes], ...] = ()
        """What was found of each chain when KV events last told of it."""
        suffixes = [group.key_suffix for group in groups]
        self._chain_of = dict(zip(suffixes, self.chains, strict=True))

    def is_found(self, key: bytes) -> bool:
        """Says of one of vLLM's keys whether the last lookup found its block."""
        chain = self._chain_of.get(key[-GROUP_BYTES:])
        return chain is not None and key[:-GROUP_BYTES] in chain.found

    def count_found(self, keys: Sequence[bytes]) -> int:
        """Returns how many of a run of one group's keys, from the first on, the last lookup found.

        keys: vLLM's, one at least.
        """
        chain = self._chain_of.get(keys[0][-GROUP_BYTES:])
        if chain is None:
            return 0
        return chain.count_found(keys[0][:-GROUP_BYTES], keys[-1][:-GROUP_BYTES], len(keys))

    def forget_found(self) -> None:
        """From now on nothing was found, until the next lookup."""
        for chain in self.chains:
            chain.set_found(0, NOTHING_FOUND)

    def forbid_loading(self) -> None:
        """Makes every further lookup a miss."""
        self.rules = RequestRules(
            is_loading=False,
            is_saving=self.rules.is_saving,
            saves_decode=self.rules.saves_decode,
            pins=self.rules.pins,
        )

    def split(self, keys: Iterable[bytes]) -> list[list[bytes]]:
        """Returns the hashes in vLLM's keys, one list a group; those of no group are left out."""
        if len(self.chains) == 1:
            return [[key[:-GROUP_BYTES] for key in keys]]
        hashes: dict[bytes, list[bytes]] = {suffix: [] for suffix in self._chain_of}
        for key in keys:
            listed = hashes.get(key[-GROUP_BYTES:])
            if listed is not None:
                listed.append(key[:-GROUP_BYTES])
        return list(hashes.values())
