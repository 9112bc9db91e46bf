"""BlockEvents: tells vLLM which blocks came into the store, changed their tier and left it.

Not thread-safe: used by the scheduler's thread only.
"""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

import numpy as np
from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.base import OffloadingEvent, OffloadKey

from kvtier.adapters.vllm.stored_group import StoredGroup
from kvtier.core_log import warn_once
from kvtier.errors import KvtierError
from kvtier.outcome import Tier
from kvtier.results import U8

ANNOUNCED_MAX: Final = 1 << 20
"""Blocks beyond it are not announced: a router that does not know of a block loses a hit."""
SWEEP_KEYS: Final = 4096
SWEEP_S: Final = 1.0
"""How often SWEEP_KEYS of the announced blocks are looked for: the store tells nobody of those
that it gives up."""

# vLLM 0.26 has text here, and no field for what follows.
_MEDIA: Final[Any] = getattr(base, "Medium", None)
_MEDIUM_OF: Final[dict[int, Any]] = {
    int(Tier.HOST): "CPU" if _MEDIA is None else _MEDIA.CPU,
    int(Tier.DISK): "STORAGE" if _MEDIA is None else _MEDIA.STORAGE,
}
_HAS_REMOVAL_EXPECTED: Final = "removal_expected" in {
    field.name for field in dataclasses.fields(OffloadingEvent)
}


class BlockEvents:
    """Blocks are announced when their save ended well, or when a request found them.

    In whichever order they come: a block is announced once until its removal is.
    """

    def __init__(self, groups: Callable[[], Sequence[StoredGroup]], clock_s: Callable[[], float]):
        self._groups = groups
        self._clock_s = clock_s
        self._next_s = 0.0
        # vLLM's key -> (position of its group, the store's key); what is being saved.
        self._planned: dict[bytes, tuple[int, bytes]] = {}
        # vLLM's key -> (position of its group, the store's key, tier); the next to look for first.
        self._announced: dict[bytes, tuple[int, bytes, int]] = {}
        self._events: list[OffloadingEvent] = []

    def note_planned(self, group_index: int, offload_keys: Sequence[bytes], keys: U8) -> None:
        """Notes what is going to be saved; keys: uint8[n, 16], one for each of vLLM's."""
        for offload_key, key in zip(offload_keys, keys, strict=True):
            self._planned[offload_key] = (group_index, key.tobytes())

    def note_saved(self, offload_keys: Collection[bytes]) -> None:
        """Announces those of planned blocks that are there, now that their save has ended."""
        planned = [(it, *self._planned.pop(it)) for it in offload_keys if it in self._planned]
        tiers = self._find_tiers([(group_index, key) for _, group_index, key in planned])
        for (offload_key, group_index, key), tier in zip(planned, tiers, strict=True):
            self._announce(offload_key, group_index, key, tier)

    def note_found(
        self, group_index: int, offload_keys: Iterable[bytes], keys: U8, tiers: U8
    ) -> None:
        """Announces blocks that a request found, say of an earlier run of the engine."""
        for offload_key, key, tier in zip(offload_keys, keys, tiers.tolist(), strict=True):
            if tier and offload_key not in self._announced:
                self._announce(offload_key, group_index, key.tobytes(), tier)

    def take(self) -> list[OffloadingEvent]:
        """Returns what happened since the last call, as far as it is known yet."""
        now_s = self._clock_s()
        if now_s >= self._next_s:
            self._next_s = now_s + SWEEP_S
            self._sweep()
        events, self._events = self._events, []
        return events

    def forget_all(self) -> None:
        """Says of every block that it is gone: none can be found any more."""
        self._planned.clear()
        announced, self._announced = self._announced, {}
        for offload_key, (_, _, tier) in announced.items():
            self._add(offload_key, tier, is_removed=True)

    def _announce(self, offload_key: bytes, group_index: int, key: bytes, tier: int) -> None:
        if not tier or offload_key in self._announced:
            return
        if len(self._announced) >= ANNOUNCED_MAX:
            warn_once(
                ("announced",),
                f"more than {ANNOUNCED_MAX} blocks in the store: KV events tell of no more",
            )
            return
        # Every block passes through host memory; vLLM keeps what it says of a block from there.
        self._announced[offload_key] = (group_index, key, int(Tier.HOST))
        self._add(offload_key, int(Tier.HOST), is_removed=False)

    def _sweep(self) -> None:
        batch = list(itertools.islice(self._announced.items(), SWEEP_KEYS))
        tiers = self._find_tiers([(group_index, key) for _, (group_index, key, _) in batch])
        for (offload_key, (group_index, key, before)), tier in zip(batch, tiers, strict=True):
            del self._announced[offload_key]
            if tier:
                self._announced[offload_key] = (group_index, key, tier)
            if tier == before:
                continue
            # The new place first: in between the block must not seem lost.
            if tier:
                self._add(offload_key, tier, is_removed=False)
            self._add(offload_key, before, is_removed=True)

    def _find_tiers(self, places: Sequence[tuple[int, bytes]]) -> list[int]:
        """Returns the tier of each (position of a group, key), 0 for what is not there."""
        tiers = np.zeros(len(places), dtype=np.uint8)
        groups = self._groups()
        for group_index in {group_index for group_index, _ in places}:
            if group_index >= len(groups):
                continue
            chosen = [it for it, place in enumerate(places) if place[0] == group_index]
            try:
                namespace = groups[group_index].namespace
                tiers[chosen] = namespace.lookup(
                    [places[it][1] for it in chosen], prefix=False
                ).tiers
            except KvtierError:
                continue
        return [int(it) for it in tiers]

    def _add(self, offload_key: bytes, tier: int, *, is_removed: bool) -> None:
        medium = _MEDIUM_OF[tier]
        last = self._events[-1] if self._events else None
        if last is not None and (last.medium, last.removed) == (medium, is_removed):
            last.keys.append(OffloadKey(offload_key))
            return
        options: dict[str, Any] = {"removal_expected": True} if _HAS_REMOVAL_EXPECTED else {}
        self._events.append(
            OffloadingEvent([OffloadKey(offload_key)], medium, removed=is_removed, **options)
        )
