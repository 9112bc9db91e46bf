"""What the connector does around vLLM's own scheduler half."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import vllm_engine  # noqa: F401
from half_setup import BLOCK_TOKENS, attach_tensors, make_engine

from kvtier.adapters.vllm.connector import KvtierConnector
from kvtier.adapters.vllm.engine_store import EngineStore

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
