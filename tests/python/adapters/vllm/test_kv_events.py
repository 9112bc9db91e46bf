"""What vLLM is told of blocks that come and go."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import vllm_engine  # noqa: F401
from group_setup import attach_groups, make_group_engine, window_keys
from half_setup import Request
from vllm.v1.kv_offload.base import Medium

from kvtier.adapters.vllm import kv_events
from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.manager import KvtierManager

CPU, STORAGE = Medium.CPU, Medium.STORAGE


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine() -> Iterator[EngineStore]:
    made = make_group_engine()
    attach_groups(made)
    yield made
    made.close()


@pytest.fixture
def manager(engine: EngineStore, clock: Clock) -> KvtierManager:
    return KvtierManager(engine, tells_events=True, clock_s=clock)


def plan_save(manager: KvtierManager, request: Request) -> Any:
    manager.resolve(request, 0)
    keys = [*request.offload_keys(), *window_keys(request, 1)]
    return manager.prepare_store(keys, request.context)


def carry_out(engine: EngineStore, output: Any) -> None:
    for group, save in zip(engine.groups, output.store_spec.groups, strict=True):
        data = np.zeros((len(save.keys), group.namespace.block_bytes), dtype=np.uint8)
        group.namespace.put(save.keys, data, parent=save.parent, chain=save.is_chain)


def save(engine: EngineStore, manager: KvtierManager, request: Request) -> list[bytes]:
    output = plan_save(manager, request)
    carry_out(engine, output)
    manager.complete_store(set(output.keys_to_store), request.context)
    return list(output.keys_to_store)


def told(manager: KvtierManager) -> list[tuple[Any, bool, set[bytes]]]:
    return [(it.medium, it.removed, set(it.keys)) for it in manager.take_events()]


def test_a_block_is_announced_once_and_when_its_save_has_ended(
    engine: EngineStore, manager: KvtierManager
) -> None:
    request = Request("a", 4)
    output = plan_save(manager, request)
    carry_out(engine, output)
    assert told(manager) == []
    manager.complete_store(set(output.keys_to_store), request.context)
    assert told(manager) == [(CPU, False, set(output.keys_to_store))]
    manager.complete_store(set(output.keys_to_store), request.context)
    other = Request("b", 4)
    manager.resolve(other, 0)
    assert told(manager) == []


def test_a_block_that_was_not_taken_is_not_announced(
    engine: EngineStore, manager: KvtierManager
) -> None:
    request = Request("a", 4)
    output = plan_save(manager, request)
    manager.complete_store(set(output.keys_to_store), request.context)
    assert told(manager) == []


def test_blocks_that_left_the_store_are_told_with_the_next_sweep(
    engine: EngineStore, manager: KvtierManager, clock: Clock
) -> None:
    request = Request("a", 4)
    saved = save(engine, manager, request)
    told(manager)
    chain_keys = manager.prepare_load(request.offload_keys(), request.context).groups[0]
    manager.complete_load((), request.context)
    assert engine.groups[0].namespace.delete(chain_keys[2:3]) == 2
    assert told(manager) == []
    clock.now_s += kv_events.SWEEP_S
    assert told(manager) == [(CPU, True, set(request.offload_keys(2)))]
    clock.now_s += kv_events.SWEEP_S
    assert told(manager) == []
    # Saved again, they are announced again.
    again = save(engine, manager, Request("b", 4))
    assert set(again) == set(request.offload_keys(2)) < set(saved)
    assert told(manager) == [(CPU, False, set(again))]


def test_a_sweep_gets_round_to_every_block(
    engine: EngineStore,
    manager: KvtierManager,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved = save(engine, manager, Request("a", 8))
    told(manager)
    assert engine.store is not None
    engine.store.clear()
    monkeypatch.setattr(kv_events, "SWEEP_KEYS", 4)
    removed: list[bytes] = []
    for _ in range(-(-len(saved) // 4)):
        clock.now_s += kv_events.SWEEP_S
        ((medium, is_removed, keys),) = told(manager)
        assert (medium, is_removed) == (CPU, True)
        removed += keys
    assert sorted(removed) == sorted(saved)


def test_a_block_that_went_to_disk_is_told_from_there_before_it_is_gone_from_here(
    disk_folder: Any, clock: Clock
) -> None:
    engine = make_group_engine(disk_path=str(disk_folder), disk_bytes="64MiB", staging_bytes="2MiB")
    attach_groups(engine)
    manager = KvtierManager(engine, tells_events=True, clock_s=clock)
    saved = set(save(engine, manager, Request("a", 4)))
    assert told(manager) == [(CPU, False, saved)]
    assert engine.store is not None
    engine.store.flush()
    engine.store.clear(["host"])
    clock.now_s += kv_events.SWEEP_S
    events = told(manager)
    assert {(medium, is_removed) for medium, is_removed, _ in events} == {
        (STORAGE, False),
        (CPU, True),
    }
    for key in saved:
        places = [(medium, is_removed) for medium, is_removed, keys in events if key in keys]
        assert places == [(STORAGE, False), (CPU, True)]
    engine.close()


def test_after_a_reset_all_blocks_are_gone(
    engine: EngineStore, manager: KvtierManager, clock: Clock
) -> None:
    request = Request("a", 4)
    saved = save(engine, manager, request)
    late = plan_save(manager, Request("b", 6))
    told(manager)
    manager.reset_cache()
    assert told(manager) == [(CPU, True, set(saved))]
    manager.complete_store(set(late.keys_to_store), request.context)
    clock.now_s += kv_events.SWEEP_S
    assert told(manager) == []


def test_blocks_of_an_earlier_run_are_announced_when_a_request_finds_them(
    engine: EngineStore, manager: KvtierManager, clock: Clock
) -> None:
    saved = save(engine, manager, Request("a", 4))
    restarted = KvtierManager(engine, tells_events=True, clock_s=clock)
    assert told(restarted) == []
    restarted.resolve(Request("b", 4), 0)
    assert told(restarted) == [(CPU, False, set(saved))]


def test_beyond_the_bound_nothing_is_announced(
    engine: EngineStore, manager: KvtierManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_events, "ANNOUNCED_MAX", 3)
    save(engine, manager, Request("a", 4))
    ((_, _, keys),) = told(manager)
    assert len(keys) == 3


def test_nothing_is_told_where_nobody_asked(engine: EngineStore) -> None:
    manager = KvtierManager(engine)
    save(engine, manager, Request("a", 4))
    manager.reset_cache()
    assert told(manager) == []
