"""Which of the blocks that were found a hit would load; vLLM's own answer is the measure."""

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import vllm_engine  # noqa: F401
from group_setup import WINDOW_TOKENS, attach_groups, make_group_engine, window_keys
from half_setup import BLOCK_TOKENS, Request
from vllm_scheduler import make_scheduler

from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.group_lookup import GroupHit, choose_needed, look_up
from kvtier.adapters.vllm.manager import KvtierManager
from kvtier.adapters.vllm.request_blocks import RequestBlocks
from kvtier.adapters.vllm.request_chain import RequestRules

NUM_BLOCKS = 20
HOST = 1


@pytest.fixture
def engine() -> Iterator[EngineStore]:
    made = make_group_engine()
    attach_groups(made)
    yield made
    made.close()


def hit_of(tiers: list[int], *, start: int, block_tokens: int, window_blocks: int | None) -> Any:
    group: Any = SimpleNamespace(
        block_tokens=block_tokens, window_blocks=window_blocks, is_prefix=window_blocks is None
    )
    keys = np.arange(len(tiers) * 16, dtype=np.uint8).reshape(-1, 16)
    return GroupHit(group=group, start=start, keys=keys, tiers=np.array(tiers, dtype=np.uint8))


def places(hits: list[GroupHit]) -> list[tuple[int, int]]:
    return [(hit.start, hit.start + len(hit.keys)) for hit in hits]


def test_of_a_window_only_its_last_blocks_are_needed() -> None:
    prefix = hit_of([HOST] * 9, start=1, block_tokens=4, window_blocks=None)
    window = hit_of([HOST] * 10, start=1, block_tokens=4, window_blocks=3)
    assert places(choose_needed([prefix, window], 4)) == [(1, 10), (7, 10)]


def test_two_windows_settle_on_an_end_that_both_have() -> None:
    first = hit_of([1, 1, 1, 1, 0, 1, 1, 1], start=0, block_tokens=4, window_blocks=2)
    second = hit_of([0, 1, 1, 1, 1, 1, 0, 1], start=0, block_tokens=4, window_blocks=3)
    assert places(choose_needed([first, second], 0)) == [(2, 4), (1, 4)]


def test_what_is_left_of_a_window_may_lie_in_the_engine() -> None:
    prefix = hit_of([HOST] * 4, start=5, block_tokens=4, window_blocks=None)
    window = hit_of([1, 1, 0, 1], start=5, block_tokens=4, window_blocks=3)
    assert places(choose_needed([prefix, window], 20)) == [(5, 7), (5, 7)]


def test_without_a_window_nothing_is_needed() -> None:
    prefix = hit_of([HOST] * 4, start=0, block_tokens=4, window_blocks=None)
    window = hit_of([0] * 4, start=0, block_tokens=4, window_blocks=2)
    assert [len(it.keys) for it in choose_needed([prefix, window], 0)] == [0, 0]


@pytest.mark.parametrize("seed", range(40))
def test_the_end_of_a_hit_is_where_vllm_puts_it(engine: EngineStore, seed: int) -> None:
    source = random.Random(seed)
    manager = KvtierManager(engine)
    scheduler = make_scheduler(manager, window_tokens=WINDOW_TOKENS)
    saving = Request("a", NUM_BLOCKS)
    manager.resolve(saving, 0)
    window_offers = [it for it in window_keys(saving) if source.random() < 0.7]
    offered = [*saving.offload_keys(0, source.randrange(NUM_BLOCKS - 1)), *window_offers]
    saves: Any = manager.prepare_store(offered, saving.context).store_spec
    for group, save in zip(engine.groups, saves.groups, strict=True):
        data = np.zeros((len(save.keys), group.namespace.block_bytes), dtype=np.uint8)
        group.namespace.put(save.keys, data, chain=save.is_chain)
    # The engine's own hits end where blocks of all groups do.
    start_tokens = 2 * BLOCK_TOKENS * source.randrange(4)

    asking = Request("b", NUM_BLOCKS)
    manager.resolve(asking, start_tokens)
    num_tokens = scheduler.find_hit(asking, start_tokens)

    blocks = RequestBlocks(asking, engine.groups, context=b"", rules=RequestRules())
    found = look_up(engine.groups, blocks, start_tokens=start_tokens, gain_tokens_min=0)
    needed = choose_needed(found, start_tokens) if found else []
    end_tokens = needed[0].group.block_tokens * places(needed)[0][1] if needed else start_tokens
    # vLLM loads no less than a block of each group.
    if end_tokens - start_tokens < 2 * BLOCK_TOKENS:
        end_tokens = start_tokens
    assert num_tokens == end_tokens - start_tokens
