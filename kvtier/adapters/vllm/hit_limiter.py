"""HitLimiter: keeps loads from taking longer than computing would, by what goes on just now.

Not thread-safe: used by the scheduler's thread only.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from kvtier.adapters.vllm.cut_reason import CutReason
from kvtier.adapters.vllm.engine_pace import EnginePace
from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.group_lookup import GroupHit
from kvtier.adapters.vllm.load_cap import Pace, cap_hit
from kvtier.errors import KvtierError

RATE_TTL_S: Final = 0.25
"""How long the disk's rate is taken for what was measured: the store counts more than that."""


class HitLimiter:
    """Knows the reads that other requests wait for, and how fast disk and engine are."""

    def __init__(self, engine: EngineStore, pace: EnginePace, clock_s: Callable[[], float]) -> None:
        self._engine = engine
        self._pace = pace
        self._clock_s = clock_s
        self._coming: dict[str, int] = {}
        """Bytes that are to be read for each request, in the order in which they began."""
        self._read_bytes_per_s: float | None = None
        self._rate_until_s = 0.0

    def limit(
        self, request_id: str, hits: Sequence[GroupHit], start_tokens: int
    ) -> tuple[list[GroupHit], CutReason | None]:
        """Returns what of a hit is to be loaded, and why not all of it."""
        margin = self._engine.settings.load_cap
        if margin is None:
            return list(hits), None
        pace = Pace(
            read_bytes_per_s=self._find_read_rate(),
            tokens_per_s=self._pace.tokens_per_s,
            read_queue_bytes=self.ahead_bytes(request_id),
            compute_wait_s=self._pace.wait_s,
        )
        capped = cap_hit(hits, start_tokens, pace, margin)
        if capped.reason is None:
            return list(hits), None
        cut = [
            hit.cut(hit.start, hit.start + num_blocks)
            for hit, num_blocks in zip(hits, capped.num_blocks, strict=True)
        ]
        gain_tokens = max(len(it.tiers) * it.group.block_tokens for it in cut)
        if gain_tokens < max(1, self._engine.gain_tokens_min):
            return [], capped.reason
        return cut, capped.reason

    def ahead_bytes(self, request_id: str) -> int:
        """Returns how much is to be read before what a request waits for."""
        total_bytes = 0
        for other_id, num_bytes in self._coming.items():
            if other_id == request_id:
                break
            total_bytes += num_bytes
        return total_bytes

    def ahead_s(self, request_id: str) -> float:
        """Returns how long that takes; 0 while the disk's rate is unknown."""
        rate = self._find_read_rate()
        return 0.0 if rate is None else self.ahead_bytes(request_id) / rate

    def note_coming(self, request_id: str, num_bytes: int) -> None:
        """Notes how much is still to be read for a request; 0: nothing."""
        if num_bytes > 0:
            self._coming[request_id] = num_bytes
        else:
            self._coming.pop(request_id, None)

    def clear(self) -> None:
        """Nothing is read any more."""
        self._coming.clear()

    def _find_read_rate(self) -> float | None:
        now_s = self._clock_s()
        if now_s >= self._rate_until_s and self._engine.store is not None:
            self._rate_until_s = now_s + RATE_TTL_S
            try:
                tiers: Any = self._engine.store.stats()["tiers"]
            except KvtierError:
                return self._read_bytes_per_s
            self._read_bytes_per_s = float(tiers["disk"]["expected_read_bytes_per_s"]) or None
        return self._read_bytes_per_s
