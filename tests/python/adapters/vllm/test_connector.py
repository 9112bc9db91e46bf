"""What the connector does around vLLM's own scheduler half."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import vllm_engine  # noqa: F401
from group_setup import WINDOW_TOKENS, attach_groups, make_group_engine
from half_setup import BLOCK_TOKENS, Request, attach_tensors, make_engine
from vllm.v1.request import RequestStatus
from vllm_scheduler import make_scheduler

from kvtier.adapters.vllm.connector import KvtierConnector
from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.manager import KvtierManager

STALE_BLOCK_IDS = [5, 6, 7, 8]


@pytest.fixture
def engine() -> Iterator[EngineStore]:
    made = make_engine()
    attach_tensors(made)
    yield made
    made.close()


@pytest.fixture
def finish(
    engine: EngineStore, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Any, list[int]], tuple[Any, list[int]]]:
    """Ends a request that holds these blocks; returns what vLLM's scheduler half goes on with:
    the limit of tokens to save, and the blocks.
    """
    connector = KvtierConnector.__new__(KvtierConnector)
    group_state = SimpleNamespace(block_ids=list(STALE_BLOCK_IDS))
    status = SimpleNamespace(group_states=[group_state], max_offload_tokens=None)
    connector._engine = engine
    connector._unscheduled = set()
    connector.connector_scheduler = SimpleNamespace(
        _req_status={"r": status}, request_finished=lambda _: (False, None)
    )

    def end(request: Any, block_ids: list[int]) -> tuple[Any, list[int]]:
        connector.request_finished_all_groups(request, (block_ids,))
        return status.max_offload_tokens, group_state.block_ids

    return end


def make_request(num_tokens: int, status: str = "FINISHED_STOPPED") -> Any:
    return SimpleNamespace(
        request_id="r",
        num_tokens=num_tokens,
        num_prompt_tokens=BLOCK_TOKENS,
        num_computed_tokens=num_tokens,
        status=SimpleNamespace(name=status),
    )


def test_one_that_ended_while_it_was_preempted_saves_no_block_of_others(
    finish: Callable[[Any, list[int]], tuple[Any, list[int]]],
) -> None:
    assert finish(make_request(4 * BLOCK_TOKENS), []) == (0, [])


def test_one_that_ended_saves_what_it_holds_less_the_token_that_was_only_sampled(
    finish: Callable[[Any, list[int]], tuple[Any, list[int]]],
) -> None:
    held = [5, 6, 9, 10]
    assert finish(make_request(4 * BLOCK_TOKENS), held) == (4 * BLOCK_TOKENS - 1, held)


def step_of(scheduled: dict[str, int], finished: set[str]) -> Any:
    """As vLLM's scheduler tells of a step."""
    return SimpleNamespace(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[], new_block_ids=[], resumed_req_ids=set(), num_computed_tokens=[]
        ),
        num_scheduled_tokens=scheduled,
        finished_req_ids=finished,
        preempted_req_ids=set(),
        partial_tail_offloads=None,
        new_partial_tail_offloads=None,
        total_num_scheduled_tokens=sum(scheduled.values()),
        kv_cache_block_copies=(),
        kv_connector_block_state=None,
    )


@pytest.mark.parametrize(("has_run", "num_saved"), [(False, 0), (True, 8)])
def test_blocks_that_another_connector_has_not_loaded_yet_are_not_saved_j4(
    has_run: bool, num_saved: int
) -> None:
    engine = make_group_engine()
    attach_groups(engine)
    try:
        manager = KvtierManager(engine)
        half = make_scheduler(manager, window_tokens=WINDOW_TOKENS)._scheduler
        connector = KvtierConnector.__new__(KvtierConnector)
        connector._engine, connector._planner = engine, None
        connector._unscheduled = set()
        connector.connector_scheduler = half
        known = Request("a", 8)
        request = SimpleNamespace(
            request_id="a",
            num_tokens=33,
            num_prompt_tokens=33,
            block_hashes=known.block_hashes,
            kv_transfer_params=None,
            kv_hints=None,
            skip_reading_prefix_cache=False,
            # vLLM counts as computed what is to be loaded, before it is there.
            num_computed_tokens=32,
            shared_prefix_boundary=None,
            lora_request=None,
            status=RequestStatus.WAITING_FOR_REMOTE_KVS,
        )
        request.is_finished = lambda: RequestStatus.is_finished(request.status)
        half.on_new_request(request)
        manager.resolve(request, 0)
        assert half.get_num_new_matched_tokens(request, 0)[0] == 0
        # Another one loads, so that ours is told of no tokens and no blocks.
        connector.update_state_after_alloc(request, SimpleNamespace(blocks=()), 0)
        if has_run:
            connector._unscheduled.clear()
        request.status = RequestStatus.FINISHED_ABORTED
        held = (list(range(10, 18)), [], [], list(range(20, 24)))
        connector.request_finished_all_groups(request, held)
        jobs = connector.build_connector_meta(step_of({}, {"a"})).store_jobs
        saved = [len(it.dst_spec.groups[0].keys) for it in jobs.values()]
        assert sum(saved) == num_saved
        assert not connector._unscheduled
    finally:
        engine.close()


def test_a_step_with_a_request_tells_that_its_blocks_are_there(engine: EngineStore) -> None:
    connector = KvtierConnector.__new__(KvtierConnector)
    connector._engine, connector._planner = engine, None
    connector._unscheduled = {"a", "b"}
    connector.connector_scheduler = SimpleNamespace(build_connector_meta=lambda it: it)
    connector.build_connector_meta(step_of({"a": 16}, set()))
    assert connector._unscheduled == {"b"}
