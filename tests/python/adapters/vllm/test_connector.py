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

from kvtier.adapters.vllm.connector import STEPS_UNDER_WAY, KvtierConnector
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
    connector._unproved = {}
    connector.connector_scheduler = SimpleNamespace(
        _req_status={"r": status},
        request_finished=lambda _: (False, None),
        manager=KvtierManager(engine),
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


class OtherLoads:
    """A request whose first 32 tokens another connector of a MultiConnector loads."""

    def __init__(self) -> None:
        self.engine = make_group_engine()
        attach_groups(self.engine)
        manager = KvtierManager(self.engine)
        half = make_scheduler(manager, window_tokens=WINDOW_TOKENS)._scheduler
        self.connector = KvtierConnector.__new__(KvtierConnector)
        self.connector._engine, self.connector._planner = self.engine, None
        self.connector._unproved, self.connector._is_inside = {}, True
        self.connector.connector_scheduler = half
        self.request = SimpleNamespace(
            request_id="a",
            num_tokens=33,
            num_prompt_tokens=33,
            block_hashes=Request("a", 8).block_hashes,
            kv_transfer_params=None,
            kv_hints=None,
            skip_reading_prefix_cache=False,
            # vLLM counts as computed what is to be loaded, before it is there.
            num_computed_tokens=32,
            shared_prefix_boundary=None,
            lora_request=None,
            status=RequestStatus.RUNNING,
        )
        self.request.is_finished = lambda: RequestStatus.is_finished(self.request.status)
        half.on_new_request(self.request)
        manager.resolve(self.request, 0)
        assert half.get_num_new_matched_tokens(self.request, 0)[0] == 0
        # Ours is told of no tokens and no blocks.
        self.connector.update_state_after_alloc(self.request, SimpleNamespace(blocks=()), 0)
        (first, _, _, last) = self.held = (list(range(10, 18)), [], [], list(range(20, 24)))
        for state, block_ids in zip(half._req_status["a"].group_states, (first, last), strict=True):
            state.block_ids[:] = block_ids
            state.offload_keys[:] = []
        half._req_status["a"].update_offload_keys()

    def step(self, finished: bool = False) -> int:
        """Plans a step; returns the number of blocks that it saves."""
        ended = {"a"} if finished else set()
        planned = step_of({} if finished else {"a": 1}, ended)
        jobs = self.connector.build_connector_meta(planned).store_jobs
        return sum(len(it.dst_spec.groups[0].keys) for it in jobs.values())

    def end(self, status: RequestStatus) -> int:
        self.request.status = status
        self.connector.request_finished_all_groups(self.request, self.held)
        assert not self.connector._unproved
        return self.step(finished=True)


@pytest.fixture
def other_loads() -> Iterator[OtherLoads]:
    made = OtherLoads()
    yield made
    made.engine.close()


def test_blocks_that_another_connector_has_not_loaded_yet_are_not_saved_j4(
    other_loads: OtherLoads,
) -> None:
    assert other_loads.end(RequestStatus.FINISHED_ABORTED) == 0


def test_blocks_that_another_connector_may_have_failed_to_load_are_held_j4(
    other_loads: OtherLoads,
) -> None:
    # The failure is told with the first step's output, when the second one is planned already.
    assert [other_loads.step() for _ in range(STEPS_UNDER_WAY)] == [0, 0]
    assert other_loads.end(RequestStatus.FINISHED_ABORTED) == 0


def test_what_another_connector_loaded_well_is_saved_a_little_later(
    other_loads: OtherLoads,
) -> None:
    assert [other_loads.step() for _ in range(STEPS_UNDER_WAY + 1)] == [0, 0, 8]
    assert other_loads.connector._unproved == {}


def test_one_that_ended_well_in_the_meantime_is_saved_at_its_end(other_loads: OtherLoads) -> None:
    assert other_loads.step() == 0
    assert other_loads.end(RequestStatus.FINISHED_STOPPED) == 8


def test_alone_nothing_is_held(other_loads: OtherLoads) -> None:
    other_loads.connector._is_inside = False
    assert other_loads.step() == 8


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
