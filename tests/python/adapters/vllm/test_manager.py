"""The scheduler's half: what it says can be loaded, and what is to be saved."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vllm_engine  # noqa: F401
from half_setup import BLOCK_TOKENS, Request, attach_tensors, make_engine
from vllm.v1.kv_offload.base import LookupResult, ScheduleEndContext

import kvtier
from kvtier.adapters.vllm import manager as manager_module
from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.manager import KvtierManager
from kvtier.adapters.vllm.request_chain import RequestRules

HIT, MISS, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.RETRY


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def engine() -> Iterator[EngineStore]:
    made = make_engine()
    attach_tensors(made)
    yield made
    made.close()


@pytest.fixture
def manager(engine: EngineStore) -> KvtierManager:
    return KvtierManager(engine)


def put_blocks(engine: EngineStore, manager: KvtierManager, request: Request, end: int) -> Any:
    """Saves the first blocks of a request as the worker would; returns what was to be saved."""
    manager.resolve(request, 0)
    output = manager.prepare_store(request.offload_keys(0, end), request.context)
    keys = output.store_spec.groups[0].keys
    assert engine.namespace is not None
    data = np.zeros((len(keys), engine.namespace.block_bytes), dtype=np.uint8)
    result = engine.namespace.put(keys, data, parent=output.store_spec.groups[0].parent)
    assert result.num_accepted == len(keys)
    return output


def test_a_request_that_nobody_knows_harms_nothing_g12(manager: KvtierManager) -> None:
    nobody, keys = Request("nobody", 2).context, Request("nobody", 2).offload_keys()
    manager.forbid_loading("nobody")
    manager.complete_load(keys, nobody)
    manager.complete_store(keys, nobody)
    manager.on_request_finished(nobody)
    assert manager.lookup(keys[0], nobody) == MISS
    assert manager.count_hits(keys, nobody) == 0
    assert [len(it) for it in manager.prepare_load(keys, nobody).groups] == [0]
    assert list(manager.prepare_store(keys, nobody).keys_to_store) == []


def answers(manager: KvtierManager, request: Request, num_computed_blocks: int = 0) -> list[Any]:
    manager.resolve(request, num_computed_blocks * BLOCK_TOKENS)
    keys = request.offload_keys(num_computed_blocks)
    return [manager.lookup(key, request.context) for key in keys]


def test_what_was_saved_is_found_up_to_the_first_gap(
    engine: EngineStore, manager: KvtierManager
) -> None:
    put_blocks(engine, manager, Request("a", 6), end=4)
    assert answers(manager, Request("b", 6)) == [HIT] * 4 + [MISS] * 2
    assert answers(manager, Request("c", 6), num_computed_blocks=3) == [HIT] + [MISS] * 2
    assert answers(manager, Request("d", 3)) == [HIT] * 3


def test_a_load_that_spares_next_to_nothing_is_not_worth_a_step(
    engine: EngineStore, manager: KvtierManager
) -> None:
    request = Request("r", num_blocks=6)
    put_blocks(engine, manager, request, 6)
    engine.gain_tokens_min = 2 * BLOCK_TOKENS
    assert answers(manager, request, num_computed_blocks=5) == [MISS]
    assert answers(manager, request, num_computed_blocks=4) == [HIT, HIT]


def test_one_request_is_looked_up_once_for_all_its_keys(
    engine: EngineStore, manager: KvtierManager
) -> None:
    put_blocks(engine, manager, Request("a", 20), end=20)
    assert engine.store is not None
    before: Any = engine.store.stats()["lookups"]
    assert answers(manager, Request("b", 20)) == [HIT] * 20
    assert engine.store.stats()["lookups"] == before + 1


@pytest.mark.parametrize("num_computed_blocks", [0, 3, 5, 6])
def test_hits_are_counted_at_once_as_one_by_one(
    num_computed_blocks: int, engine: EngineStore, manager: KvtierManager
) -> None:
    put_blocks(engine, manager, Request("a", 6), end=5)
    request = Request("b", 8)
    one_by_one = answers(manager, request, num_computed_blocks)
    for end in range(num_computed_blocks, 9):
        keys = request.offload_keys(num_computed_blocks, end)
        expected = one_by_one[: len(keys)].count(HIT)
        assert manager.count_hits(keys, request.context) == expected
    assert manager.count_hits(Request("c", 2).offload_keys(), Request("c", 2).context) == 0


def test_a_request_that_nobody_resolved_has_no_hits(manager: KvtierManager) -> None:
    request = Request("a", 2)
    assert manager.lookup(request.offload_keys()[0], request.context) is MISS
    assert manager.prepare_store(request.offload_keys(), request.context).keys_to_store == []


def test_only_what_is_not_there_is_saved_beneath_what_is(
    engine: EngineStore, manager: KvtierManager
) -> None:
    first = put_blocks(engine, manager, Request("a", 6), end=3)
    assert first.store_spec.groups[0].parent is None
    request = Request("b", 6)
    second = put_blocks(engine, manager, request, end=6)
    assert second.keys_to_store == request.offload_keys(3)
    assert second.store_spec.groups[0].parent == first.store_spec.groups[0].keys[2].tobytes()
    third = manager.prepare_store(request.offload_keys(), request.context)
    assert third.keys_to_store == []


def test_blocks_offered_in_the_middle_have_the_one_before_as_parent(
    engine: EngineStore, manager: KvtierManager
) -> None:
    request = Request("a", 6)
    first = put_blocks(engine, manager, request, end=2)
    output = manager.prepare_store(request.offload_keys(2, 5), request.context)
    assert output.keys_to_store == request.offload_keys(2, 5)
    assert output.store_spec.groups[0].parent == first.store_spec.groups[0].keys[1].tobytes()


def test_generated_blocks_are_left_out_for_a_request_that_says_so(
    engine: EngineStore, manager: KvtierManager
) -> None:
    wish = {"kvtier": {"save_decode": False}}
    request = Request("a", 6, num_prompt_tokens=3 * BLOCK_TOKENS + 1, kv_transfer_params=wish)
    manager.resolve(request, 0)
    output = manager.prepare_store(request.offload_keys(), request.context)
    assert output.keys_to_store == request.offload_keys(0, 3)
    later = manager.prepare_store(request.offload_keys(4), request.context)
    assert later.keys_to_store == []


def test_a_request_may_opt_out_of_saving_and_of_loading(
    engine: EngineStore, manager: KvtierManager
) -> None:
    quiet = Request("a", 3, kv_transfer_params={"kvtier": {"save": False}})
    manager.resolve(quiet, 0)
    assert manager.prepare_store(quiet.offload_keys(), quiet.context).keys_to_store == []
    put_blocks(engine, manager, Request("b", 3), end=3)
    fresh = Request("c", 3, kv_transfer_params={"kvtier": {"load": False}})
    assert answers(manager, fresh) == [MISS] * 3


def test_a_producer_loads_nothing_and_a_consumer_saves_nothing() -> None:
    for rules, expected in (
        (RequestRules(is_loading=False), 2),
        (RequestRules(is_saving=False), 0),
    ):
        engine = make_engine(rules=rules)
        attach_tensors(engine)
        manager, request = KvtierManager(engine), Request("a", 2)
        manager.resolve(request, 0)
        output = manager.prepare_store(request.offload_keys(), request.context)
        assert len(output.keys_to_store) == expected
        engine.close()


def test_after_a_failed_load_a_request_is_not_loaded_again(
    engine: EngineStore, manager: KvtierManager
) -> None:
    put_blocks(engine, manager, Request("a", 4), end=4)
    request = Request("b", 4)
    assert answers(manager, request) == [HIT] * 4
    manager.forbid_loading("b")
    assert answers(manager, request) == [MISS] * 4
    assert answers(manager, Request("c", 4)) == [HIT] * 4


def test_after_a_reset_nothing_saved_before_is_found(
    engine: EngineStore, manager: KvtierManager
) -> None:
    running = Request("a", 4)
    put_blocks(engine, manager, running, end=4)
    manager.reset_cache()
    # What it computed before is not saved as if it were of after.
    offered = manager.prepare_store(running.offload_keys(), running.context)
    assert offered.keys_to_store == []
    assert answers(manager, Request("b", 4)) == [MISS] * 4
    assert answers(manager, running) == [MISS] * 4
    put_blocks(engine, manager, running, end=4)
    assert answers(manager, Request("c", 4)) == [HIT] * 4
    # A restarted engine has the weights that it had before the reset.
    assert answers(KvtierManager(engine), Request("d", 4)) == [HIT] * 4


def test_a_finished_request_may_save_its_last_blocks_in_the_next_step(
    engine: EngineStore, manager: KvtierManager
) -> None:
    request = Request("a", 3)
    put_blocks(engine, manager, request, end=2)
    manager.on_request_finished(request.context)
    step = ScheduleEndContext(new_req_ids=[], preempted_req_ids=[])
    manager.on_schedule_end(step)
    last = manager.prepare_store(request.offload_keys(2), request.context)
    assert last.keys_to_store == request.offload_keys(2)
    manager.on_schedule_end(step)
    assert manager.prepare_store(request.offload_keys(2), request.context).keys_to_store == []


def test_another_adapter_s_blocks_are_not_found(
    engine: EngineStore, manager: KvtierManager, tmp_path: Path
) -> None:
    put_blocks(engine, manager, Request("a", 2), end=2)

    class Lora:
        lora_name = "l"
        lora_int_id = 1
        lora_path = str(tmp_path)

    assert answers(manager, Request("b", 2, lora_request=Lora())) == [MISS] * 2


def test_what_is_about_to_be_loaded_cannot_be_deleted(
    engine: EngineStore, manager: KvtierManager
) -> None:
    put_blocks(engine, manager, Request("a", 4), end=4)
    request = Request("b", 4)
    answers(manager, request)
    spec = manager.prepare_load(request.offload_keys(1, 4), request.context)
    assert spec.request_id == "b"
    assert engine.namespace is not None
    assert engine.namespace.delete(spec.groups[0]) == 0
    manager.complete_load(request.offload_keys(1, 4), request.context)
    assert engine.namespace.delete(spec.groups[0][:1]) == 3


def test_a_store_that_closed_by_itself_stops_no_request(
    engine: EngineStore, manager: KvtierManager
) -> None:
    put_blocks(engine, manager, Request("a", 2), end=2)
    request = Request("b", 2)
    answers(manager, request)
    manager.prepare_load(request.offload_keys(), request.context)
    assert engine.store is not None
    engine.store.close()
    assert answers(manager, request) == [MISS] * 2
    manager.prepare_load(request.offload_keys(), request.context)
    manager.prepare_store(request.offload_keys(), request.context)
    manager.shutdown()


def test_blocks_far_away_on_disk_are_fetched_before_they_are_promised(
    disk_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"disk_path": str(disk_folder), "disk_bytes": "64MiB", "staging_bytes": "2MiB"}
    first = make_engine(**sizes)
    attach_tensors(first)
    put_blocks(first, KvtierManager(first), Request("a", 4), end=4)
    first.close()

    engine, clock = make_engine(**sizes), Clock()
    attach_tensors(engine)
    manager = KvtierManager(engine, clock_s=clock)
    # No rate is known yet, so nothing counts as far: say that nothing can be had in time.
    monkeypatch.setattr(manager_module, "QUICK_LOAD_S", 0.0)
    namespace = engine.namespace
    assert namespace is not None
    prefetched = []
    monkeypatch.setattr(
        kvtier.Namespace,
        "prefetch",
        lambda self, keys: prefetched.append(len(keys)),
    )
    lookup = kvtier.Namespace.lookup

    def lookup_with_slow_disk(self: Any, keys: Any, **options: Any) -> Any:
        return lookup(self, keys[:0] if options else keys)

    monkeypatch.setattr(kvtier.Namespace, "lookup", lookup_with_slow_disk)
    request = Request("b", 4)
    assert answers(manager, request) == [RETRY] * 4
    assert answers(manager, request) == [RETRY] * 4
    assert manager.count_hits(request.offload_keys(), request.context) is None
    assert prefetched == [4]
    clock.now_s += manager_module.PATIENCE_S
    assert answers(manager, request) == [HIT] * 4
    engine.close()


def test_metrics_count_what_happened_since_the_last_time(engine: EngineStore) -> None:
    clock = Clock()
    manager = KvtierManager(engine, clock_s=clock)
    put_blocks(engine, manager, Request("a", 4), end=4)
    first = manager.get_stats().reduce()
    assert first["vllm:kvtier_inserted:('host',)"] == 4
    assert first["vllm:kvtier_blocks:('host',)"] == 4
    assert manager.get_stats() is None
    clock.now_s += 10
    assert "vllm:kvtier_inserted:('host',)" not in manager.get_stats().reduce()


def test_metrics_are_told_with_the_last_answer(engine: EngineStore) -> None:
    manager = KvtierManager(engine, clock_s=Clock())
    first, second = Request("a", 2), Request("b", 2)
    for request in (first, second):
        manager.on_new_request(request.context)
    assert manager.get_stats() is not None
    put_blocks(engine, manager, first, end=2)
    manager.note_answered("a")
    assert manager.get_stats() is None
    # After it the engine has nothing to do, and asks no more.
    manager.note_answered("b")
    assert manager.get_stats().reduce()["vllm:kvtier_inserted:('host',)"] == 2
    manager.on_request_finished(first.context)
    manager.on_request_finished(second.context)
    assert manager.get_stats() is None
    # Nor after the saves that end later.
    late = Request("b", 4)
    put_blocks(engine, manager, late, end=4)
    manager.complete_store(late.offload_keys(), late.context)
    assert manager.get_stats().reduce()["vllm:kvtier_inserted:('host',)"] == 2
    assert manager.get_stats() is None


def test_an_engine_that_is_off_has_no_hits_and_saves_nothing() -> None:
    engine = make_engine(kv_device="off")
    attach_tensors(engine)
    manager, request = KvtierManager(engine), Request("a", 2)
    assert answers(manager, request) == [MISS] * 2
    assert manager.prepare_store(request.offload_keys(), request.context).keys_to_store == []
    assert manager.get_stats() is None
    manager.reset_cache()
    manager.shutdown()
    engine.close()
