"""The scheduler's half shortens hits on a real disk tier by what goes on, and tells why."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import vllm_engine  # noqa: F401
from half_setup import BLOCK_TOKENS, Request, attach_tensors, make_engine
from vllm.v1.kv_offload.base import LookupResult

import kvtier
from kvtier.adapters.vllm import hit_limiter as hit_limiter_module
from kvtier.adapters.vllm import load_cap as load_cap_module
from kvtier.adapters.vllm import manager as manager_module
from kvtier.adapters.vllm.cut_reason import CutReason
from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.manager import KvtierManager

HIT, MISS, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.RETRY
NUM_BLOCKS = 16
BLOCK_BYTES = 4096


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class World:
    """A manager whose blocks all lie on disk, with an engine and a disk of known speed."""

    def __init__(self, engine: EngineStore) -> None:
        self.engine = engine
        self.clock = Clock()
        self.manager = KvtierManager(engine, clock_s=self.clock)
        self.read_bytes_per_s = 0.0
        self.prefetched: list[int] = []
        assert engine.store is not None
        stats = engine.store.stats

        def played_stats() -> dict[str, Any]:
            found: dict[str, Any] = dict(stats())
            found["tiers"]["disk"]["expected_read_bytes_per_s"] = self.read_bytes_per_s
            return found

        self.stats = played_stats

    def compute(self, tokens_per_s: float) -> None:
        """Lets the engine compute a prompt at that rate, and end."""
        request = Request("cold", 64 * 1024 // BLOCK_TOKENS)
        request.num_tokens = request.num_blocks * BLOCK_TOKENS  # type: ignore[attr-defined]
        request.num_computed_tokens = 0  # type: ignore[attr-defined]
        self.manager.admit(request, 0)
        self.manager.note_step({"cold": request.num_blocks * BLOCK_TOKENS})
        self.clock.now_s += request.num_blocks * BLOCK_TOKENS / tokens_per_s
        self.manager.note_step({"cold": 1})
        self.manager.on_request_finished(request.context)

    def answers(self, request: Request) -> list[Any]:
        self.manager.resolve(request, 0)
        return [self.manager.lookup(key, request.context) for key in request.offload_keys()]

    def admit(self, request: Request, num_loaded_tokens: int) -> None:
        request.num_tokens = request.num_blocks * BLOCK_TOKENS  # type: ignore[attr-defined]
        request.num_computed_tokens = 0  # type: ignore[attr-defined]
        self.manager.admit(request, num_loaded_tokens)

    def cuts(self) -> dict[str, float]:
        """Returns {reason: tokens} since the last time."""
        self.clock.now_s += 10
        stats = self.manager.get_stats()
        assert stats is not None
        counted = stats.reduce()
        cuts = {}
        for reason in CutReason:
            name = f"vllm:kvtier_cut_tokens:{(reason.value,)}"
            if name in counted:
                cuts[reason.value] = counted[name]
        return cuts


@pytest.fixture
def world(disk_folder: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    sizes = {"disk_path": str(disk_folder), "disk_bytes": "64MiB", "staging_bytes": "2MiB"}
    first = make_engine(**sizes)
    attach_tensors(first)
    request, manager = Request("a", NUM_BLOCKS), KvtierManager(first)
    manager.resolve(request, 0)
    save = manager.prepare_store(request.offload_keys(), request.context).store_spec.groups[0]
    assert first.namespace is not None
    data = np.zeros((NUM_BLOCKS, first.namespace.block_bytes), dtype=np.uint8)
    assert first.namespace.put(save.keys, data).num_accepted == NUM_BLOCKS
    first.close()
    engine = make_engine(**sizes)
    attach_tensors(engine)
    made = World(engine)
    monkeypatch.setattr(hit_limiter_module, "RATE_TTL_S", 0.0)
    monkeypatch.setattr(engine.store, "stats", made.stats)
    yield made
    engine.close()


def test_while_nothing_is_known_everything_is_loaded(world: World) -> None:
    assert world.answers(Request("b", NUM_BLOCKS)) == [HIT] * NUM_BLOCKS


def test_what_takes_longer_to_read_than_to_compute_is_computed_and_counted(world: World) -> None:
    world.compute(tokens_per_s=100_000.0)
    world.read_bytes_per_s = 1.1 * 100_000 / BLOCK_TOKENS * BLOCK_BYTES
    request = Request("b", NUM_BLOCKS)
    assert world.answers(request) == [HIT] * NUM_BLOCKS
    world.admit(request, NUM_BLOCKS * BLOCK_TOKENS)
    world.manager.on_request_finished(request.context)
    assert world.cuts() == {}
    world.read_bytes_per_s *= 0.8
    request = Request("c", NUM_BLOCKS)
    # Asked in every step, told once.
    assert world.answers(request) == [MISS] * NUM_BLOCKS
    assert world.answers(request) == [MISS] * NUM_BLOCKS
    world.admit(request, 0)
    world.admit(request, 0)
    assert world.cuts() == {"disk": NUM_BLOCKS * BLOCK_TOKENS}


def test_loads_under_way_are_a_queue_until_they_have_ended(world: World) -> None:
    world.compute(tokens_per_s=100_000.0)
    world.read_bytes_per_s = 1.1 * 100_000 / BLOCK_TOKENS * BLOCK_BYTES
    first, second = Request("b", NUM_BLOCKS), Request("c", NUM_BLOCKS)
    assert world.answers(first) == [HIT] * NUM_BLOCKS
    world.admit(first, NUM_BLOCKS * BLOCK_TOKENS)
    assert world.answers(second) == [MISS] * NUM_BLOCKS
    world.manager.complete_load(first.offload_keys(), first.context)
    assert world.answers(second) == [HIT] * NUM_BLOCKS


def test_beside_a_busy_engine_a_slow_disk_is_of_use(world: World) -> None:
    world.compute(tokens_per_s=100_000.0)
    world.read_bytes_per_s = 0.8 * 100_000 / BLOCK_TOKENS * BLOCK_BYTES
    assert world.answers(Request("b", NUM_BLOCKS)) == [MISS] * NUM_BLOCKS
    world.admit(Request("long", NUM_BLOCKS), 0)
    assert world.answers(Request("b", NUM_BLOCKS)) == [HIT] * NUM_BLOCKS


def test_the_first_long_load_is_computed_while_the_engines_rate_is_unknown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.read_bytes_per_s = 50e6
    assert world.answers(Request("b", NUM_BLOCKS)) == [HIT] * NUM_BLOCKS
    monkeypatch.setattr(load_cap_module, "UNKNOWN_LOAD_S_MAX", 1e-6)
    request = Request("c", NUM_BLOCKS)
    assert world.answers(request) == [MISS] * NUM_BLOCKS
    world.admit(request, 0)
    assert world.cuts() == {"unknown": NUM_BLOCKS * BLOCK_TOKENS}


def test_off_loads_whatever_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.compute(tokens_per_s=100_000.0)
    world.read_bytes_per_s = 1000.0
    assert world.answers(Request("b", NUM_BLOCKS)) == [MISS] * NUM_BLOCKS
    settings = world.engine.settings
    changed = type(settings)(
        **{**{name: getattr(settings, name) for name in settings.__slots__}, "load_cap": None}
    )
    monkeypatch.setattr(world.engine, "settings", changed)
    assert world.answers(Request("c", NUM_BLOCKS)) == [HIT] * NUM_BLOCKS


@pytest.fixture
def waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Blocks on disk count as far, and prefetches are noted in place of being carried out."""
    monkeypatch.setattr(manager_module, "QUICK_LOAD_S", 0.0)
    lookup = kvtier.Namespace.lookup
    monkeypatch.setattr(
        kvtier.Namespace,
        "lookup",
        lambda self, keys, **options: lookup(self, keys[:0] if options else keys),
    )
    monkeypatch.setattr(
        kvtier.Namespace, "prefetch", lambda self, keys: world.prefetched.append(len(keys))
    )
    world.read_bytes_per_s = 1e6
    return world


def test_when_those_before_it_are_gone_a_request_soon_stops_waiting(waiting: World) -> None:
    first, second = Request("b", NUM_BLOCKS), Request("c", NUM_BLOCKS)
    assert waiting.answers(first) == [RETRY] * NUM_BLOCKS
    assert waiting.answers(second) == [RETRY] * NUM_BLOCKS
    waiting.clock.now_s += 0.04
    assert waiting.answers(second) == [RETRY] * NUM_BLOCKS
    waiting.manager.on_request_finished(first.context)
    # There may have been no room for its blocks before: it asks again.
    assert waiting.answers(second) == [RETRY] * NUM_BLOCKS
    assert waiting.prefetched == [NUM_BLOCKS] * 3
    waiting.clock.now_s += manager_module.PATIENCE_S
    assert waiting.answers(second) == [HIT] * NUM_BLOCKS


def test_more_of_a_hit_that_becomes_worth_its_load_is_fetched_too(waiting: World) -> None:
    waiting.compute(tokens_per_s=100_000.0)
    waiting.read_bytes_per_s = 0.5 * 100_000 / BLOCK_TOKENS * BLOCK_BYTES
    waiting.admit(Request("some", 8), 0)
    request = Request("b", NUM_BLOCKS)
    num_kept = waiting.answers(request).count(RETRY)
    assert 0 < num_kept < NUM_BLOCKS
    waiting.admit(Request("more", NUM_BLOCKS), 0)
    assert waiting.answers(request) == [RETRY] * NUM_BLOCKS
    assert waiting.prefetched == [num_kept, NUM_BLOCKS]


def test_a_load_keeps_its_place_before_those_that_came_later(waiting: World) -> None:
    first, second = Request("b", NUM_BLOCKS), Request("c", NUM_BLOCKS)
    waiting.answers(first)
    waiting.answers(second)
    ahead_bytes = waiting.manager._limiter.ahead_bytes("c")
    assert ahead_bytes == NUM_BLOCKS * BLOCK_BYTES
    waiting.clock.now_s += manager_module.PATIENCE_S
    assert waiting.answers(first) == [HIT] * NUM_BLOCKS
    waiting.admit(first, NUM_BLOCKS * BLOCK_TOKENS)
    assert waiting.manager._limiter.ahead_bytes("c") == ahead_bytes
    waiting.manager.complete_load(first.offload_keys(), first.context)
    assert waiting.manager._limiter.ahead_bytes("c") == 0
