"""Replays requests against a store: takes the prefix that is there, checks it, puts the rest.

A replay belongs to one thread. What it does for itself (making and checking payloads, waiting) is
measured apart, so that what is left is the store's.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np

from kvtier.bench.payload import U8, U64, PayloadPattern, payload_words
from kvtier.bench.trace import BlockId, Request, raw_key
from kvtier.outcome import Outcome, Tier

if TYPE_CHECKING:
    from kvtier import BlockStore, Namespace

TIER_NAMES = {int(Tier.HOST): "host", int(Tier.DISK): "disk"}

_CALL_BYTES_MAX = 32 << 20
_BACKLOG_BYTES_MAX = 256 << 20
_BACKLOG_WAIT_S_MAX = 5.0
_BACKLOG_POLL_S = 0.0005


@dataclass(kw_only=True)
class TierCounts:
    """What one tier did, as far as it was seen from outside or stands in its counters."""

    hits: int = 0
    got_bytes: int = 0
    got_s: float = 0.0
    latencies_us: list[float] = field(default_factory=list)
    bytes_read: int = 0
    bytes_written: int = 0

    def add(self, other: TierCounts) -> None:
        self.hits += other.hits
        self.got_bytes += other.got_bytes
        self.got_s += other.got_s
        self.latencies_us += other.latencies_us
        self.bytes_read += other.bytes_read
        self.bytes_written += other.bytes_written


@dataclass(kw_only=True)
class ReplayCounts:
    """What a replay, or a part of one, moved and how long it took."""

    requests: int = 0
    blocks: int = 0
    wrong_blocks: int = 0
    wrong_bytes: int = 0
    offered_bytes: int = 0
    declined_blocks: int = 0
    failed_blocks: int = 0
    store_cpu_s: float = 0.0
    own_cpu_s: float = 0.0
    waited_s: float = 0.0
    wall_s: float = 0.0
    host: TierCounts = field(default_factory=TierCounts)
    disk: TierCounts = field(default_factory=TierCounts)

    def tier(self, name: str) -> TierCounts:
        return self.host if name == "host" else self.disk

    def add(self, other: ReplayCounts) -> None:
        """Adds the counts of a later part of the same replay."""
        for name in _SUMMED_FIELDS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.host.add(other.host)
        self.disk.add(other.disk)


_SUMMED_FIELDS = [
    name for name in ReplayCounts.__dataclass_fields__ if name not in ("host", "disk")
]


def counts_from_json(values: Mapping[str, object]) -> ReplayCounts:
    """The reverse of `dataclasses.asdict`; the values come from this version of this file."""
    plain = {name: values[name] for name in _SUMMED_FIELDS}
    counts = ReplayCounts(**plain)  # type: ignore[arg-type]
    for name in ("host", "disk"):
        setattr(counts, name, TierCounts(**cast("dict[str, int]", values[name])))  # type: ignore[arg-type]
    return counts


class TierMeter:
    """Differences of a store's byte counters and hits per tier since the last look."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._last = tier_counters(store)

    def take(self) -> dict[str, dict[str, int]]:
        now = tier_counters(self._store)
        difference = {
            tier: {name: value - self._last[tier][name] for name, value in counters.items()}
            for tier, counters in now.items()
        }
        self._last = now
        return difference


def tier_counters(store: BlockStore) -> dict[str, dict[str, int]]:
    """The integers of `stats()` per tier; zeros for a tier that the store has not."""
    tiers = cast("Mapping[str, Mapping[str, int]]", store.stats()["tiers"])
    names = ("hits", "bytes_read", "bytes_written", "backlog_bytes", "bytes_capacity", "blocks")
    return {
        tier: {name: int(tiers.get(tier, {}).get(name, 0)) for name in names}
        for tier in ("host", "disk")
    }


class Replay:
    """Requests with the store that they run against. Not thread-safe.

    is_paced: waits before a put until the disk tier's backlog has room for it, as the computing of
    the blocks would make an engine wait. Otherwise the disk tier declines what comes too fast.
    pause: waits so many seconds between two looks at the backlog.
    """

    def __init__(
        self,
        store: BlockStore,
        namespace: Namespace,
        requests: Sequence[Request],
        *,
        is_paced: bool = True,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._requests = requests
        self._block_bytes = namespace.block_bytes
        self._pattern = PayloadPattern(self._block_bytes)
        self._ids = {hash_id: i for i, hash_id in enumerate(_distinct(requests))}
        self._keys = _make_keys(namespace, list(self._ids))
        self._words = payload_words(self._keys)
        capacity_bytes = tier_counters(store)["host"]["bytes_capacity"]
        self._backlog_bytes_max = min(_BACKLOG_BYTES_MAX, capacity_bytes // 2)
        self._pause = pause
        self._is_paced = is_paced and capacity_bytes > 0
        call_bytes = min(_CALL_BYTES_MAX, max(capacity_bytes // 8, 1 << 20))
        self._call_blocks = max(1, call_bytes // self._block_bytes)
        self._buffer = np.zeros((self._call_blocks, self._block_bytes), dtype=np.uint8)
        self._counts = ReplayCounts()
        self._meter = TierMeter(store)
        self._started_s = time.perf_counter()
        self._cpu_started_s = _process_cpu_s()

    @property
    def keys(self) -> U8:
        """The keys of all distinct blocks: uint8[num_blocks, 16]."""
        return self._keys

    def run(
        self,
        *,
        first: int = 0,
        stop: int | None = None,
        step: int = 25,
        report: Callable[[int, ReplayCounts], None] | None = None,
    ) -> None:
        """Replays requests first..stop; `report` gets what is new after each `step`."""
        stop = len(self._requests) if stop is None else stop
        for index in range(first, stop):
            self._replay_request(self._requests[index])
            if report is not None and ((index + 1 - first) % step == 0 or index + 1 == stop):
                report(index + 1, self.take_counts())

    def take_counts(self) -> ReplayCounts:
        """Returns what was counted since the last call, and starts anew."""
        counts = self._counts
        for name, counters in self._meter.take().items():
            counts.tier(name).bytes_read += counters["bytes_read"]
            counts.tier(name).bytes_written += counters["bytes_written"]
        cpu_s, now_s = _process_cpu_s(), time.perf_counter()
        counts.store_cpu_s = max(0.0, cpu_s - self._cpu_started_s - counts.own_cpu_s)
        counts.wall_s = now_s - self._started_s
        self._counts = ReplayCounts()
        self._cpu_started_s, self._started_s = cpu_s, now_s
        return counts

    def _replay_request(self, request: Request) -> None:
        indices = np.fromiter(
            (self._ids[hash_id] for hash_id in request.hash_ids), np.int64, len(request.hash_ids)
        )
        self._counts.requests += 1
        self._counts.blocks += len(indices)
        if not len(indices):
            return
        num_there = self._get_prefix(indices, request.request_id)
        if num_there < len(indices):
            self._put_rest(indices, num_there, request.request_id)

    def _get_prefix(
        self, indices: np.ndarray[tuple[int], np.dtype[np.int64]], request_id: str
    ) -> int:
        keys = self._keys[indices]
        lookup = self._namespace.lookup(keys)
        num_there = 0
        for start, stop in _tier_runs(lookup.tiers[: lookup.num_blocks], self._call_blocks):
            num_got = self._get_run(keys[start:stop], self._words[indices[start:stop]], request_id)
            num_there += num_got
            if num_got < stop - start:
                break
        return num_there

    def _get_run(self, keys: U8, words: U64, request_id: str) -> int:
        out = self._buffer[: len(keys)]
        with _OwnTime(self._counts):
            # What an earlier call left could pass for what this one should deliver.
            out.fill(0xA5)
            hits_before = tier_counters(self._store)["disk"]["hits"]
        started_s = time.perf_counter()
        result = self._namespace.get(keys, out, prefix=True, request=request_id)
        elapsed_s = time.perf_counter() - started_s
        num_got = result.num_blocks
        with _OwnTime(self._counts):
            disk_hits = tier_counters(self._store)["disk"]["hits"] - hits_before
            wrong = self._pattern.check(words[:num_got], out[:num_got])
        self._counts.wrong_blocks += wrong.wrong_blocks
        self._counts.wrong_bytes += wrong.wrong_bytes
        self._counts.failed_blocks += len(keys) - num_got
        self._counts.disk.hits += disk_hits
        self._counts.host.hits += num_got - disk_hits
        if num_got:
            # A call in which a block moved meanwhile counts for the slower tier, with all its time.
            tier = self._counts.disk if disk_hits else self._counts.host
            tier.got_bytes += (disk_hits or num_got) * self._block_bytes
            tier.got_s += elapsed_s
            tier.latencies_us.append(elapsed_s * 1e6)
        return num_got

    def _put_rest(
        self, indices: np.ndarray[tuple[int], np.dtype[np.int64]], first: int, request_id: str
    ) -> None:
        parent = self._keys[indices[first - 1]] if first else None
        for start in range(first, len(indices), self._call_blocks):
            piece = indices[start : start + self._call_blocks]
            data = self._buffer[: len(piece)]
            with _OwnTime(self._counts):
                self._pattern.fill(self._words[piece], data)
                if self._is_paced:
                    self._wait_for_backlog(data.nbytes)
            result = self._namespace.put(self._keys[piece], data, parent=parent, request=request_id)
            self._counts.offered_bytes += data.nbytes
            if result.num_accepted < len(piece):
                num_done = sum(outcome == Outcome.DONE for outcome in result.outcomes)
                self._counts.declined_blocks += len(piece) - num_done
                return
            parent = self._keys[piece[-1]]

    def _wait_for_backlog(self, put_bytes: int) -> None:
        started_s = now_s = time.perf_counter()
        while now_s - started_s < _BACKLOG_WAIT_S_MAX:
            backlog_bytes = tier_counters(self._store)["disk"]["backlog_bytes"]
            if backlog_bytes == 0 or backlog_bytes + put_bytes <= self._backlog_bytes_max:
                break
            self._pause(_BACKLOG_POLL_S)
            now_s = time.perf_counter()
        self._counts.waited_s += now_s - started_s


class _OwnTime:
    """Adds the CPU time of the calling thread inside the `with` to what is the replay's own."""

    def __init__(self, counts: ReplayCounts) -> None:
        self._counts = counts
        self._started_s = 0.0

    def __enter__(self) -> None:
        self._started_s = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._counts.own_cpu_s += time.thread_time() - self._started_s


def _distinct(requests: Sequence[Request]) -> dict[BlockId, None]:
    return dict.fromkeys(hash_id for request in requests for hash_id in request.hash_ids)


def _make_keys(namespace: Namespace, hash_ids: Sequence[BlockId]) -> U8:
    keys = np.zeros((len(hash_ids), 16), dtype=np.uint8)
    for index, hash_id in enumerate(hash_ids):
        keys[index] = namespace.key(raw_key(hash_id))
    return keys


def _tier_runs(tiers: U8, num_blocks_max: int) -> Iterator[tuple[int, int]]:
    """Stretches of one tier each, so that a call's time belongs to one tier."""
    start = 0
    for index in range(1, len(tiers) + 1):
        is_end = index == len(tiers) or tiers[index] != tiers[start]
        if is_end or index - start == num_blocks_max:
            yield start, index
            start = index


def _process_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
