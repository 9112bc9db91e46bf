"""The scheduler's half in an engine with several groups, and vLLM's own scheduler on top of it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import vllm_engine  # noqa: F401
from group_setup import NUM_HASHES, WINDOW_TOKENS, attach_groups, make_group_engine, window_keys
from half_setup import BLOCK_TOKENS, Request
from vllm.v1.kv_offload.base import LookupResult
from vllm_scheduler import make_scheduler

import kvtier
from kvtier.adapters.vllm import manager as manager_module
from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.manager import KvtierManager

HIT, MISS, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.RETRY


@pytest.fixture
def engine() -> Iterator[EngineStore]:
    made = make_group_engine()
    attach_groups(made)
    yield made
    made.close()


@pytest.fixture
def manager(engine: EngineStore) -> KvtierManager:
    return KvtierManager(engine)


def put(engine: EngineStore, manager: KvtierManager, request: Request, keys: list[bytes]) -> Any:
    """Saves as the worker would, and returns what was to be saved."""
    manager.resolve(request, 0)
    output: Any = manager.prepare_store(keys, request.context)
    for group, save in zip(engine.groups, output.store_spec.groups, strict=True):
        data = np.zeros((len(save.keys), group.namespace.block_bytes), dtype=np.uint8)
        options = {"parent": save.parent, "chain": save.is_chain}
        result = group.namespace.put(save.keys, data, **options)
        assert result.num_accepted == len(save.keys)
    return output


def ask(manager: KvtierManager, request: Request, keys: list[bytes]) -> list[LookupResult]:
    return [manager.lookup(key, request.context) for key in keys]


def test_each_group_has_a_namespace_and_block_sizes_of_its_own(engine: EngineStore) -> None:
    first, second = (group.namespace for group in engine.groups)
    assert first.id != second.id
    assert (first.block_tokens, second.block_tokens) == (BLOCK_TOKENS, 2 * BLOCK_TOKENS)
    assert (first.block_bytes, second.block_bytes) == (4096, 3000)
    assert [it.describe()["group"] for it in (first, second)] == [0, 3]


@pytest.mark.parametrize("num_tokens_more", [1, 3])
def test_requests_that_end_within_a_block_find_what_all_groups_have_j1(
    num_tokens_more: int,
) -> None:
    for num_blocks in range(1, 16):
        made = make_group_engine()
        attach_groups(made)
        try:
            manager = KvtierManager(made)
            scheduler = make_scheduler(manager, window_tokens=WINDOW_TOKENS)
            saved = Request("saved", num_blocks)
            put(made, manager, saved, saved.offload_keys() + window_keys(saved))
            asked = Request("asked", num_blocks)
            found = scheduler.find_hit(asked, num_tokens_more=num_tokens_more)
            assert found == num_blocks // NUM_HASHES * NUM_HASHES * BLOCK_TOKENS, num_blocks
        finally:
            made.close()


def test_blocks_of_a_window_are_saved_without_those_before_them(
    engine: EngineStore, manager: KvtierManager
) -> None:
    request = Request("a", 12)
    offered = request.offload_keys(0, 12) + window_keys(request, 1, 2) + window_keys(request, 4, 6)
    output = put(engine, manager, request, offered)
    assert output.keys_to_store == offered
    assert [len(it.keys) for it in output.store_spec.groups] == [12, 3]
    fresh = Request("b", 12)
    manager.resolve(fresh, 0)
    assert ask(manager, fresh, fresh.offload_keys()) == [HIT] * 12
    assert ask(manager, fresh, window_keys(fresh)) == [MISS, HIT, MISS, MISS, HIT, HIT]
    # What is there is not saved again, wherever the holes are.
    again = manager.prepare_store(window_keys(fresh, 3), fresh.context)
    assert again.keys_to_store == window_keys(fresh, 3, 4)
    # None goes with another.
    (_, saved), namespace = output.store_spec.groups, engine.groups[1].namespace
    assert namespace.delete(saved.keys[:1]) == 1
    assert namespace.lookup(saved.keys, prefix=False).num_blocks == 2


def test_nothing_of_a_window_is_asked_beyond_the_shortest_prefix(
    engine: EngineStore, manager: KvtierManager
) -> None:
    request = Request("a", 12)
    put(engine, manager, request, request.offload_keys(0, 4) + window_keys(request))
    fresh = Request("b", 12)
    manager.resolve(fresh, 0)
    # One block more is known, which a drafter's last block would be.
    assert ask(manager, fresh, window_keys(fresh)) == [HIT] * 3 + [MISS] * 3
    without = Request("c", 12)
    without.block_hashes[0] = bytes(32)
    manager.resolve(without, 0)
    assert ask(manager, without, window_keys(without)) == [MISS] * 6


def test_generated_blocks_of_a_window_are_left_out_for_a_request_that_says_so(
    engine: EngineStore, manager: KvtierManager
) -> None:
    wish = {"kvtier": {"save_decode": False}}
    request = Request("a", 8, num_prompt_tokens=5 * BLOCK_TOKENS, kv_transfer_params=wish)
    manager.resolve(request, 0)
    output = manager.prepare_store(window_keys(request), request.context)
    assert output.keys_to_store == window_keys(request, 0, 2)


def test_hashes_that_end_within_a_block_are_no_block(
    engine: EngineStore, manager: KvtierManager
) -> None:
    request = Request("a", 8)
    put(engine, manager, request, request.offload_keys() + window_keys(request))
    within = request.block_hashes[4] + window_keys(request)[0][-4:]
    assert ask(manager, request, [within]) == [MISS]
    assert manager.prepare_store([within], request.context).keys_to_store == []
    unknown_group = request.block_hashes[3] + b"\0\0\0\x07"
    assert ask(manager, request, [unknown_group]) == [MISS]
    assert manager.prepare_store([unknown_group], request.context).keys_to_store == []


def test_after_a_reset_no_group_has_what_was_saved_before(
    engine: EngineStore, manager: KvtierManager
) -> None:
    request = Request("a", 8)
    put(engine, manager, request, request.offload_keys() + window_keys(request))
    manager.reset_cache()
    manager.resolve(request, 0)
    assert ask(manager, request, request.offload_keys() + window_keys(request)) == [MISS] * 12


def test_what_is_about_to_be_loaded_cannot_be_deleted_in_any_group(
    engine: EngineStore, manager: KvtierManager
) -> None:
    request = Request("a", 8)
    put(engine, manager, request, request.offload_keys() + window_keys(request))
    manager.resolve(request, 0)
    keys = request.offload_keys() + window_keys(request, 2)
    spec = manager.prepare_load(keys, request.context)
    assert [len(it) for it in spec.groups] == [8, 2]
    for group, group_keys in zip(engine.groups, spec.groups, strict=True):
        assert group.namespace.delete(group_keys) == 0
    manager.complete_load(keys, request.context)
    assert engine.groups[1].namespace.delete(spec.groups[1]) == 2


def test_vllm_s_scheduler_finds_the_longest_hit_that_all_groups_have(
    engine: EngineStore, manager: KvtierManager
) -> None:
    scheduler = make_scheduler(manager, window_tokens=WINDOW_TOKENS)
    request = Request("a", 20)
    # The window before token 80 lacks one of its two blocks; that before 64 is whole.
    offered = request.offload_keys() + window_keys(request, 6, 8) + window_keys(request, 9, 10)
    put(engine, manager, request, offered)
    fresh = Request("b", 20)
    manager.resolve(fresh, 0)
    assert scheduler.find_hit(fresh) == 64
    short = Request("c", 14)
    manager.resolve(short, 0)
    assert scheduler.find_hit(short) == 0


def test_only_what_a_hit_would_load_is_fetched_from_disk_before(
    disk_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"disk_path": str(disk_folder), "disk_bytes": "64MiB", "staging_bytes": "2MiB"}
    first = make_group_engine(**sizes)
    attach_groups(first)
    request = Request("a", 20)
    put(first, KvtierManager(first), request, request.offload_keys() + window_keys(request))
    first.close()

    engine = make_group_engine(**sizes)
    attach_groups(engine)
    manager = KvtierManager(engine, clock_s=lambda: 100.0)
    # No rate is known yet, so nothing counts as far: say that nothing can be had in time.
    monkeypatch.setattr(manager_module, "QUICK_LOAD_S", 0.0)
    prefetched: dict[str, int] = {}
    lookup = kvtier.Namespace.lookup

    def lookup_with_slow_disk(self: Any, keys: Any, **options: Any) -> Any:
        return lookup(self, keys[:0] if "max_load_s" in options else keys, **options)

    def note_prefetch(self: Any, keys: Any) -> None:
        prefetched[self.id] = len(keys)

    monkeypatch.setattr(kvtier.Namespace, "lookup", lookup_with_slow_disk)
    monkeypatch.setattr(kvtier.Namespace, "prefetch", note_prefetch)
    fresh = Request("b", 20)
    manager.resolve(fresh, 4 * BLOCK_TOKENS)
    assert ask(manager, fresh, fresh.offload_keys(4)) == [RETRY] * 16
    assert ask(manager, fresh, window_keys(fresh, 8)) == [RETRY] * 2
    first_id, second_id = (group.namespace.id for group in engine.groups)
    assert prefetched == {first_id: 16, second_id: 2}
    engine.close()
