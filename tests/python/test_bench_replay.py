"""The replay against a double of the store: what it counts, and that it catches a lying store."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from kvtier.bench.replay import Replay, ReplayCounts
from kvtier.bench.trace import Request
from kvtier.outcome import Outcome

BLOCK_BYTES = 4096
CHAINS = [(1, 2, 3), (1, 2, 4), (1, 2, 3), (9,), ()]
REQUESTS = [Request(request_id=str(i), hash_ids=ids) for i, ids in enumerate(CHAINS)]


class StoreDouble:
    """Store and namespace in one: keeps everything; blocks named in `on_disk` count for disk."""

    block_bytes = BLOCK_BYTES

    def __init__(self) -> None:
        self.blocks: dict[bytes, np.ndarray] = {}
        self.parents: dict[bytes, bytes | None] = {}
        self.on_disk: set[bytes] = set()
        self.backlogs: list[int] = []
        self.tamper: Callable[[np.ndarray], None] = lambda out: None
        self.delay_s = 0.0
        self.num_delivered_max = 1000
        self.num_accepted_max = 1000
        self.disk = {"hits": 0, "bytes_read": 0, "bytes_written": 0}

    def stats(self) -> dict[str, object]:
        backlog_bytes = self.backlogs.pop(0) if self.backlogs else 0
        host = {"bytes_capacity": 1 << 20}
        return {"tiers": {"host": host, "disk": {**self.disk, "backlog_bytes": backlog_bytes}}}

    def key(self, raw: bytes) -> np.ndarray:
        return np.frombuffer(hashlib.md5(raw).digest(), dtype=np.uint8)

    def lookup(self, keys: np.ndarray) -> SimpleNamespace:
        tiers = [0 if k.tobytes() not in self.blocks else 1 + (k.tobytes() in self.on_disk)
                 for k in keys]  # fmt: skip
        num_blocks = tiers.index(0) if 0 in tiers else len(tiers)
        return SimpleNamespace(num_blocks=num_blocks, tiers=np.array(tiers, dtype=np.uint8))

    def put(
        self, keys: np.ndarray, data: np.ndarray, *, parent: np.ndarray | None, request: str
    ) -> SimpleNamespace:
        previous = parent.tobytes() if parent is not None else None
        for key, block in list(zip(keys, data, strict=True))[: self.num_accepted_max]:
            self.blocks[key.tobytes()] = block.copy()
            self.parents.setdefault(key.tobytes(), previous)
            previous = key.tobytes()
            self.disk["bytes_written"] += len(block)
        num_accepted = min(len(keys), self.num_accepted_max)
        outcomes = [Outcome.DONE] * num_accepted
        outcomes += [Outcome.DECLINED] * (len(keys) - num_accepted)
        return SimpleNamespace(num_accepted=num_accepted, outcomes=outcomes)

    def get(
        self, keys: np.ndarray, out: np.ndarray, *, prefix: bool, request: str
    ) -> SimpleNamespace:
        time.sleep(self.delay_s)
        num_got = min(len(keys), self.num_delivered_max)
        for index in range(num_got):
            out[index] = self.blocks[keys[index].tobytes()]
            if keys[index].tobytes() in self.on_disk:
                self.disk["hits"] += 1
                self.disk["bytes_read"] += len(out[index])
        self.tamper(out[:num_got])
        return SimpleNamespace(num_blocks=num_got)


def replay(store: StoreDouble) -> ReplayCounts:
    run = Replay(store, store, REQUESTS)  # type: ignore[arg-type]
    reports: list[tuple[int, ReplayCounts]] = []
    run.run(step=2, report=lambda num_done, counts: reports.append((num_done, counts)))
    assert [num_done for num_done, _ in reports] == [2, 4, 5]
    total = ReplayCounts()
    for _, counts in reports:
        total.add(counts)
    return total


def test_an_honest_store_gives_exact_counts() -> None:
    store = StoreDouble()
    counts = replay(store)
    assert counts.requests == 5
    assert counts.blocks == 10
    assert counts.host.hits == 5
    assert counts.disk.hits == 0
    assert counts.wrong_bytes == 0
    assert counts.offered_bytes == counts.disk.bytes_written == 5 * BLOCK_BYTES
    assert len(counts.host.latencies_us) == 2


def test_the_rest_is_put_below_the_last_block_that_was_there() -> None:
    store = StoreDouble()
    replay(store)
    run = Replay(store, store, REQUESTS)  # type: ignore[arg-type]
    keys = {ids: key.tobytes() for ids, key in zip([1, 2, 3, 4, 9], run.keys, strict=True)}
    assert store.parents[keys[4]] == keys[2]
    assert store.parents[keys[2]] == keys[1]
    assert store.parents[keys[9]] is None


def test_hits_and_time_belong_to_the_tier_where_the_bytes_lay() -> None:
    store = StoreDouble()
    run = Replay(store, store, REQUESTS)  # type: ignore[arg-type]
    run.run()
    run.take_counts()
    store.on_disk = {run.keys[1].tobytes(), run.keys[2].tobytes()}
    run.run(first=2, stop=3)
    counts = run.take_counts()
    assert counts.host.hits == 1
    assert counts.disk.hits == 2
    assert counts.disk.got_bytes == counts.disk.bytes_read == 2 * BLOCK_BYTES
    assert len(counts.host.latencies_us) == len(counts.disk.latencies_us) == 1


def test_time_counts_until_the_bytes_are_there() -> None:
    store = StoreDouble()
    store.delay_s = 0.1
    counts = replay(store)
    assert min(counts.host.latencies_us) >= 100_000


def flip_a_bit(out: np.ndarray) -> None:
    out[0, 1000] ^= 4


def swap(out: np.ndarray) -> None:
    out[:2] = out[1::-1].copy()


def shift(out: np.ndarray) -> None:
    out[:] = np.roll(out, 1, axis=1)


def leave_untouched(out: np.ndarray) -> None:
    out[:] = 0xA5


@pytest.mark.parametrize("tamper", [flip_a_bit, swap, shift, leave_untouched])
def test_a_lying_store_is_caught(tamper: Callable[[np.ndarray], None]) -> None:
    store = StoreDouble()
    store.tamper = tamper
    counts = replay(store)
    assert counts.wrong_blocks >= 2
    assert counts.wrong_bytes >= counts.wrong_blocks


def test_a_get_that_claims_success_without_writing_is_caught() -> None:
    store = StoreDouble()
    run = Replay(store, store, REQUESTS)  # type: ignore[arg-type]
    run.run(stop=2)
    store.get = lambda keys, out, **_: SimpleNamespace(num_blocks=len(keys))  # type: ignore[method-assign]
    run.take_counts()
    run.run(first=2, stop=3)
    assert run.take_counts().wrong_blocks == 3


def test_blocks_that_were_promised_and_not_given_are_counted_and_put_again() -> None:
    store = StoreDouble()
    store.num_delivered_max = 1
    counts = replay(store)
    assert counts.host.hits == 2
    assert counts.failed_blocks == 3
    assert counts.offered_bytes == 8 * BLOCK_BYTES


def test_declined_blocks_are_counted() -> None:
    store = StoreDouble()
    store.num_accepted_max = 1
    assert replay(store).declined_blocks > 0


def test_a_put_waits_until_the_backlog_has_room() -> None:
    store = StoreDouble()
    pauses: list[float] = []
    run = Replay(store, store, REQUESTS, pause=pauses.append)  # type: ignore[arg-type]
    store.backlogs = [1 << 20, 1 << 20, 1 << 20, 0]
    run.run(stop=1)
    assert store.backlogs == []
    assert len(pauses) == 3
    assert run.take_counts().waited_s > 0


def test_what_the_replay_does_for_itself_is_not_the_stores_cpu_time() -> None:
    store = StoreDouble()
    run = Replay(store, store, REQUESTS)  # type: ignore[arg-type]
    run.take_counts()

    def check_slowly(words: np.ndarray, data: np.ndarray) -> SimpleNamespace:
        end_s = time.thread_time() + 0.2
        while time.thread_time() < end_s:
            pass
        return SimpleNamespace(wrong_blocks=0, wrong_bytes=0)

    run._pattern.check = check_slowly  # type: ignore[method-assign, assignment]
    run.run(stop=3)
    counts = run.take_counts()
    assert counts.own_cpu_s >= 0.4
    assert counts.store_cpu_s < 0.2
