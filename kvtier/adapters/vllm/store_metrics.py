"""Turns what the store counts into vLLM's metrics, vllm:kvtier_*.

Not thread-safe: used by the scheduler's thread only.
"""

from collections.abc import Callable
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingMetricMetadata,
)

from kvtier.adapters.vllm.cut_reason import CutReason
from kvtier.adapters.vllm.engine_pace import EnginePace
from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.errors import KvtierError

PREFIX: Final = "vllm:kvtier_"
INTERVAL_S: Final = 1.0
"""How often the store's counters are read: the engine asks in each of its steps."""

_COUNTERS: Final = {
    "hits": "Blocks delivered from this tier.",
    "misses": "Blocks asked of this tier and not delivered.",
    "load_failures": "Blocks that could not be loaded although they were there.",
    "corrupt": "Blocks whose checksum did not fit: computed again, never used.",
    "inserted": "Blocks taken into this tier.",
    "declined": "Blocks that this tier did not take.",
    "evicted": "Blocks given up for others.",
    "bytes_read": "Bytes read from this tier.",
    "bytes_written": "Bytes written to this tier.",
}
_GAUGES: Final = {
    "blocks": "Blocks in this tier.",
    "bytes_used": "Bytes in use in this tier.",
    "bytes_capacity": "Bytes that this tier may use.",
    "backlog_bytes": "Bytes that wait to be written to this tier.",
}
_IS_HEALTHY: Final = "is_healthy"
_SCHEDULER_SECONDS: Final = "scheduler_seconds"
_CUT_HITS: Final = "cut_hits"
_CUT_TOKENS: Final = "cut_tokens"
_PREFILL_RATE: Final = "prefill_tokens_per_s"
_SECONDS_BUCKETS: Final = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1)


def define_metrics() -> dict[str, OffloadingMetricMetadata]:
    """Returns vLLM's description of each metric, by name."""
    labels = ("tier",)
    counters = {
        PREFIX + name: OffloadingCounterMetadata(documentation=text, labelnames=labels)
        for name, text in _COUNTERS.items()
    }
    gauges = {
        PREFIX + name: OffloadingGaugeMetadata(documentation=text, labelnames=labels)
        for name, text in _GAUGES.items()
    }
    return {
        **counters,
        **gauges,
        PREFIX + _IS_HEALTHY: OffloadingGaugeMetadata(
            documentation="1 while this tier serves as it should, 0 when it is degraded or off.",
            labelnames=labels,
        ),
        PREFIX + _CUT_HITS: OffloadingCounterMetadata(
            documentation="Hits of which less was loaded than found: disk, computing was faster "
            "than reading; queue, only behind other reads; unknown, the engine's rate was.",
            labelnames=("reason",),
        ),
        PREFIX + _CUT_TOKENS: OffloadingCounterMetadata(
            documentation="Tokens of those hits that were computed in place of being loaded.",
            labelnames=("reason",),
        ),
        PREFIX + _PREFILL_RATE: OffloadingGaugeMetadata(
            documentation="Tokens of prompts that the engine computes a second, as lately seen."
        ),
        PREFIX + _SCHEDULER_SECONDS: OffloadingHistogramMetadata(
            documentation="Time of one call in the scheduler's thread.", buckets=_SECONDS_BUCKETS
        ),
    }


class StoreMetrics:
    """What has happened since the engine asked last."""

    def __init__(self, engine: EngineStore, pace: EnginePace, clock_s: Callable[[], float]) -> None:
        self._engine = engine
        self._pace = pace
        self._clock_s = clock_s
        self._next_s = 0.0
        self._is_due = False
        self._counted: dict[tuple[str, str], float] = {}
        self._scheduler_s: list[float] = []
        self._cuts: list[tuple[CutReason, int]] = []

    def observe_scheduler_s(self, seconds: float) -> None:
        """Notes how long one call held the scheduler's thread."""
        self._scheduler_s.append(seconds)

    def count_cut(self, reason: CutReason, num_tokens: int) -> None:
        """Notes that so many tokens of a hit are computed, and why."""
        self._cuts.append((reason, num_tokens))

    def hurry(self) -> None:
        """Lets the next take() tell what is new however early: the engine may not ask again."""
        self._is_due = True

    def take(self) -> OffloadingConnectorStats | None:
        """Returns what is new, or None when it is too early to ask again."""
        now_s = self._clock_s()
        if self._engine.store is None or (now_s < self._next_s and not self._is_due):
            return None
        # One that was hurried takes no other's turn.
        if now_s >= self._next_s:
            self._next_s = now_s + INTERVAL_S
        self._is_due = False
        try:
            tiers: Any = self._engine.store.stats()["tiers"]
        except KvtierError:
            return None
        stats = OffloadingConnectorStats()
        for tier, numbers in tiers.items():
            self._add_tier(stats, tier, numbers)
        for seconds in self._scheduler_s:
            stats.observe_histogram(PREFIX + _SCHEDULER_SECONDS, seconds)
        self._scheduler_s = []
        for reason, num_tokens in self._cuts:
            stats.increase_counter(PREFIX + _CUT_HITS, 1, (reason.value,))
            stats.increase_counter(PREFIX + _CUT_TOKENS, num_tokens, (reason.value,))
        self._cuts = []
        if self._pace.tokens_per_s is not None:
            stats.set_gauge(PREFIX + _PREFILL_RATE, self._pace.tokens_per_s)
        return stats

    def _add_tier(self, stats: OffloadingConnectorStats, tier: str, numbers: Any) -> None:
        for name in _COUNTERS:
            grown = numbers[name] - self._counted.get((tier, name), 0)
            self._counted[tier, name] = numbers[name]
            if grown > 0:
                stats.increase_counter(PREFIX + name, grown, (tier,))
        for name in _GAUGES:
            stats.set_gauge(PREFIX + name, numbers[name], (tier,))
        stats.set_gauge(PREFIX + _IS_HEALTHY, int(numbers["health"] == "ok"), (tier,))
