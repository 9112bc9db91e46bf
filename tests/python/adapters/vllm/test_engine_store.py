"""One store for the two halves of a connector."""

from collections.abc import Callable

import pytest
from half_setup import make_engine

import kvtier
from kvtier.adapters.vllm.connector_settings import parse_connector_settings
from kvtier.adapters.vllm.engine_store import (
    EngineStore,
    acquire_engine_store,
    find_engine_store,
    release_engine_store,
)
from kvtier.adapters.vllm.kv_groups import KvGroup
from kvtier.adapters.vllm.request_chain import RequestRules


@pytest.fixture
def make() -> Callable[[], EngineStore]:
    return lambda: make_engine(kv_max_cpu_memory="1MiB")


def test_both_halves_get_one_store_and_the_last_closes_it(make: Callable[[], EngineStore]) -> None:
    first = acquire_engine_store("e", "WORKER", make)
    assert acquire_engine_store("e", "SCHEDULER", make) is first
    assert find_engine_store("e") is first
    store = first.store
    assert store is not None
    release_engine_store("e", "WORKER")
    release_engine_store("e", "WORKER")
    store.stats()
    release_engine_store("e", "SCHEDULER")
    with pytest.raises(kvtier.ClosedError):
        store.stats()
    release_engine_store("e", "SCHEDULER")


def test_a_second_connector_in_one_engine_is_refused(make: Callable[[], EngineStore]) -> None:
    acquire_engine_store("e", "WORKER", make)
    with pytest.raises(kvtier.UnsupportedError, match="MultiConnector"):
        acquire_engine_store("e", "WORKER", make)
    release_engine_store("e", "WORKER")


def test_engines_do_not_share(make: Callable[[], EngineStore]) -> None:
    engines = [acquire_engine_store(name, "WORKER", make) for name in ("e", "f")]
    assert engines[0] is not engines[1]
    release_engine_store("e", "WORKER")
    release_engine_store("f", "WORKER")


def test_a_store_that_cannot_be_opened_leaves_nothing_behind(
    make: Callable[[], EngineStore],
) -> None:
    def fail() -> EngineStore:
        raise kvtier.ConfigError("no")

    with pytest.raises(kvtier.ConfigError):
        acquire_engine_store("e", "WORKER", fail)
    acquire_engine_store("e", "WORKER", make)
    release_engine_store("e", "WORKER")


@pytest.mark.parametrize(
    ("group", "is_whole"),
    [
        (KvGroup(), False),
        (KvGroup(is_only=False), True),
        (KvGroup(kind="SlidingWindowSpec", window_tokens=96), True),
        (KvGroup(kind="MambaSpec", window_tokens=1), True),
    ],
)
def test_a_load_counts_block_by_block_only_where_nothing_is_skipped(
    group: KvGroup, is_whole: bool
) -> None:
    settings = parse_connector_settings({"kv_device": "off"})
    engine = EngineStore(settings, identity={}, rules=RequestRules(), groups=(group,))
    assert engine.is_loaded_whole is is_whole


def test_an_engine_that_is_off_opens_nothing() -> None:
    engine = make_engine(kv_device="off")
    assert engine.store is None
    engine.close()
