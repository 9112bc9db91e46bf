"""What vLLM says of itself at /metrics: counters of one moment, and what lies between two. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvtier.exposition import Sample, parse_samples, sum_of

TIERS = ("host", "disk")
_TIER_COUNTERS = ("hits", "misses", "evicted", "declined", "bytes_read", "bytes_written")
_BY_SOURCE = "vllm:prompt_tokens_by_source_total"
_OFFLOADED = "vllm:kv_offload_total_bytes_total"


@dataclass(frozen=True, kw_only=True)
class EngineCounters:
    """Counters never decrease while the engine runs. Sums over all engines behind one server."""

    prompt_tokens: float = 0
    generated_tokens: float = 0
    device_hit_tokens: float = 0
    external_hit_tokens: float = 0
    preemptions: float = 0
    loaded_bytes: float = 0
    saved_bytes: float = 0
    """Host to device and device to host, where vLLM's own connector moves them."""
    tiers: Mapping[str, float]
    """By "host_hits" and the like; empty where kvtier does not serve."""
    device_room_tokens: float | None = None
    """What the engine's own cache holds; None where it does not say."""
    block_tokens: float | None = None
    backlog_bytes: float = 0

    def since(self, before: EngineCounters) -> EngineCounters:
        """Returns what was counted after `before`; gauges stay as they are."""
        counted = {name: getattr(self, name) - getattr(before, name) for name in _SUMS}
        return EngineCounters(
            **counted,
            tiers={name: value - before.tiers.get(name, 0) for name, value in self.tiers.items()},
            device_room_tokens=self.device_room_tokens,
            block_tokens=self.block_tokens,
            backlog_bytes=self.backlog_bytes,
        )

    @property
    def new_device_tokens(self) -> float:
        """Tokens whose KV was put into the engine's own cache, computed or loaded."""
        return self.prompt_tokens - self.device_hit_tokens + self.generated_tokens

    @property
    def has_evicted(self) -> bool | None:
        """Whether the engine had to give up KV of this time; None where it can't be told."""
        if self.preemptions > 0:
            return True
        if self.device_room_tokens is None:
            return None
        return self.new_device_tokens > self.device_room_tokens

    def hit_rate(self, place: str) -> float | None:
        """Share of prompt tokens that came from "device", "host", "disk" or "external"."""
        if not self.prompt_tokens:
            return None
        hits = {"device": self.device_hit_tokens, "external": self.external_hit_tokens}.get(place)
        if hits is None:
            if not self.tiers or self.block_tokens is None:
                return None
            hits = self.tiers.get(f"{place}_hits", 0) * self.block_tokens
        return hits / self.prompt_tokens


_SUMS = {
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generated_tokens": "vllm:generation_tokens_total",
    "device_hit_tokens": "vllm:prefix_cache_hits_total",
    "external_hit_tokens": "vllm:external_prefix_cache_hits_total",
    "preemptions": "vllm:num_preemptions_total",
    "loaded_bytes": "",
    "saved_bytes": "",
}
_PROMPT_SOURCES = {
    "device_hit_tokens": "local_cache_hit",
    "external_hit_tokens": "external_kv_transfer",
}
"""Once for each request. What the prefix cache was asked counts again each time that a waiting
request is looked at; engines that do not tell the sources have only that."""


def parse_counters(text: str) -> EngineCounters | None:
    """Reads a page of metrics; None when it holds none of vLLM's."""
    samples = list(parse_samples(text))
    if not any(sample.name.startswith("vllm:") for sample in samples):
        return None
    sums = {field: sum_of(samples, name) for field, name in _SUMS.items() if name}
    if any(sample.name == _BY_SOURCE for sample in samples):
        for field, source in _PROMPT_SOURCES.items():
            sums[field] = sum_of(samples, _BY_SOURCE, source=source)
    block_tokens, room_tokens = _find_room(samples)
    return EngineCounters(
        **sums,
        loaded_bytes=sum_of(samples, _OFFLOADED, transfer_type="CPU_to_GPU"),
        saved_bytes=sum_of(samples, _OFFLOADED, transfer_type="GPU_to_CPU"),
        tiers=dict(_tier_counters(samples)),
        device_room_tokens=room_tokens,
        block_tokens=block_tokens,
        backlog_bytes=sum_of(samples, "vllm:kvtier_backlog_bytes"),
    )


def _tier_counters(samples: list[Sample]) -> Iterator[tuple[str, float]]:
    # Gauges are there from the start, counters from their first count on.
    if not any(sample.name == "vllm:kvtier_blocks" for sample in samples):
        return
    for tier in TIERS:
        for name in _TIER_COUNTERS:
            yield f"{tier}_{name}", sum_of(samples, f"vllm:kvtier_{name}_total", tier=tier)


def _find_room(samples: list[Sample]) -> tuple[float | None, float | None]:
    """Tokens of a block, and of all blocks of all engines but the one that each never uses."""
    block_tokens: float | None = None
    room_tokens: float | None = None
    for sample in samples:
        block_size = sample.labels.get("block_size", "")
        num_blocks = sample.labels.get("num_gpu_blocks", "")
        is_told = block_size.isdecimal() and num_blocks.isdecimal()
        if sample.name == "vllm:cache_config_info" and is_told:
            block_tokens = float(block_size)
            room_tokens = (room_tokens or 0.0) + block_tokens * (int(num_blocks) - 1)
    return block_tokens, room_tokens
