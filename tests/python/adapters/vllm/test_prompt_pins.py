"""Prompts that requests keep from eviction: pinned once they are stored, and given free again."""

from collections.abc import Iterator
from typing import Any

import pytest
import vllm_engine  # noqa: F401
from half_setup import BLOCK_TOKENS, Request, attach_tensors, make_engine
from test_manager import put_blocks
from vllm.v1.kv_offload.base import ScheduleEndContext

from kvtier import core_log
from kvtier.adapters.vllm import prompt_pins
from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.manager import KvtierManager
from kvtier.adapters.vllm.request_chain import RequestRules

PIN = {"kvtier": {"pin": True}}
UNPIN = {"kvtier": {"unpin": True}}


@pytest.fixture
def engine() -> Iterator[EngineStore]:
    made = make_engine(rules=RequestRules(may_pin=True))
    attach_tensors(made)
    yield made
    made.close()


@pytest.fixture
def manager(engine: EngineStore) -> KvtierManager:
    return KvtierManager(engine)


def pinned_blocks(engine: EngineStore) -> int:
    assert engine.namespace is not None
    store = engine.namespace._store
    tiers: Any = store.stats()["tiers"]
    return int(tiers["host"]["pinned_bytes"]) // engine.namespace.block_bytes


def end(manager: KvtierManager, request: Request) -> None:
    """vLLM forgets a request a step after its end."""
    manager.on_request_finished(request.context)
    for _ in range(3):
        manager.on_schedule_end(ScheduleEndContext(new_req_ids=[], preempted_req_ids=[]))


def test_a_prompt_is_pinned_when_its_last_save_ends_after_its_request(
    engine: EngineStore, manager: KvtierManager
) -> None:
    prompt_tokens = 4 * BLOCK_TOKENS
    request = Request("a", 6, num_prompt_tokens=prompt_tokens, kv_transfer_params=PIN)
    put_blocks(engine, manager, request, end=2)
    manager.complete_store(request.offload_keys(0, 2), request.context)
    assert pinned_blocks(engine) == 2
    put_blocks(engine, manager, request, end=6)
    end(manager, request)
    assert pinned_blocks(engine) == 4  # Not what was generated.


def test_saves_that_end_when_the_request_is_forgotten_still_count(
    engine: EngineStore, manager: KvtierManager
) -> None:
    request = Request("a", 3, kv_transfer_params=PIN)
    manager.resolve(request, 0)
    end(manager, request)
    assert pinned_blocks(engine) == 0
    put_blocks(engine, manager, Request("b", 3), end=3)
    manager.complete_store(request.offload_keys(), request.context)
    assert pinned_blocks(engine) == 3


def test_what_is_stored_already_is_pinned_at_the_request_s_end(
    engine: EngineStore, manager: KvtierManager
) -> None:
    put_blocks(engine, manager, Request("a", 3), end=3)
    request = Request("b", 3, kv_transfer_params=PIN)
    manager.resolve(request, 0)
    end(manager, request)
    assert pinned_blocks(engine) == 3


def test_a_prompt_is_given_free_however_often_it_was_pinned(
    engine: EngineStore, manager: KvtierManager
) -> None:
    put_blocks(engine, manager, Request("a", 3), end=3)
    for name in "bcd":
        request = Request(name, 3, kv_transfer_params=PIN)
        manager.resolve(request, 0)
        end(manager, request)
    assert pinned_blocks(engine) == 3
    manager.resolve(Request("e", 3, kv_transfer_params=UNPIN), 0)
    assert pinned_blocks(engine) == 0


def test_a_wish_that_cannot_be_met_is_given_up_and_said(
    engine: EngineStore,
    manager: KvtierManager,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core_log, "_said_once", set())
    request = Request("a", 3, kv_transfer_params=PIN)
    manager.resolve(request, 0)
    end(manager, request)
    other = Request("b", 3)
    for _ in range(prompt_pins.TRIES_MAX + 1):
        manager.complete_store(other.offload_keys(), other.context)
    assert "only 0 of 3 blocks" in caplog.text
    put_blocks(engine, manager, other, end=3)
    manager.complete_store(other.offload_keys(), other.context)
    assert pinned_blocks(engine) == 0


def test_unpinning_ends_what_is_still_waited_for(
    engine: EngineStore, manager: KvtierManager
) -> None:
    manager.resolve(Request("a", 3, kv_transfer_params=PIN), 0)
    longer = Request("b", 4, kv_transfer_params=PIN)
    manager.resolve(longer, 0)
    manager.resolve(Request("c", 3, kv_transfer_params=UNPIN), 0)
    assert list(manager._pins._wishes) == ["b"]
    put_blocks(engine, manager, Request("d", 3), end=3)
    manager.complete_store(longer.offload_keys(0, 3), longer.context)
    assert pinned_blocks(engine) == 3  # For "b", which continues them.


def test_every_wish_gets_its_turn(engine: EngineStore, manager: KvtierManager) -> None:
    for i in range(3 * prompt_pins.TURN_WISHES_MAX):
        manager.resolve(Request(f"r{i}", 3, kv_transfer_params=PIN), 0)
    request = Request("x", 3)
    put_blocks(engine, manager, request, end=3)
    assert engine.namespace is not None
    for _ in range(3):
        manager.complete_store(request.offload_keys(), request.context)
    assert all(it.num_pinned == 3 for it in manager._pins._wishes.values())


def test_wishes_are_bounded(engine: EngineStore, manager: KvtierManager) -> None:
    for i in range(prompt_pins.WISHES_MAX + 5):
        manager.resolve(Request(f"r{i}", 3, kv_transfer_params=PIN), 0)
    assert len(manager._pins._wishes) == prompt_pins.WISHES_MAX
    manager.reset_cache()
    assert not manager._pins._wishes


def test_a_store_that_is_closed_stops_no_request(
    engine: EngineStore, manager: KvtierManager
) -> None:
    request = Request("a", 3, kv_transfer_params=PIN)
    manager.resolve(request, 0)
    engine.close()
    end(manager, request)
    assert not manager._pins._wishes
    manager.resolve(Request("b", 3, kv_transfer_params=UNPIN), 0)
