"""Leases: what they protect, until when, and that they end once."""

import threading
from collections.abc import Callable
from functools import partial

import pytest
from payload import payloads
from store_setup import BLOCK_BYTES, namespace_of

import kvtier


def test_what_is_leased_and_its_ancestors_are_not_deleted(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(16))
    ns.put(keys, payloads(keys, 1, BLOCK_BYTES))
    with ns.lease(keys[:2]) as lease:
        assert lease.num_blocks == 2
        assert 0 < lease.expires_in_s <= 30
        assert ns.delete(keys) == 2
        assert ns.lookup(keys).num_blocks == 2
    assert ns.delete(keys) == 2


def collect(call: Callable[[], bool], answers: list[bool]) -> None:
    answers.append(call())


def test_a_lease_is_released_once_even_from_two_threads_c6(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(16))
    ns.put(keys, payloads(keys, 1, BLOCK_BYTES))
    for _ in range(20):
        lease = ns.lease(keys, owner="request-7")
        answers: list[bool] = []
        release = partial(collect, lease.release, answers)
        threads = [threading.Thread(target=release) for _ in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answers) == [False, True]
        assert lease.expires_in_s == 0.0
        assert lease.release() is False


def test_a_lease_of_nothing_and_a_bogus_one_are_no_accident_g12(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    lease = ns.lease(ns.keys(range(16)))
    assert (lease.num_blocks, lease.release(), lease.expires_in_s) == (0, False, 0.0)
    assert store._core_store.release(12345678) is False
    assert store._core_store.lease_expires_in_s(2**63) == 0.0
    assert ns.delete([bytes(16)]) == 0


def test_a_lease_may_be_asked_for_longer_than_it_gets(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(4))
    ns.put(keys, bytes(BLOCK_BYTES))
    with ns.lease(keys, ttl_s=1e12) as lease:
        assert 3590 < lease.expires_in_s <= 3600
    assert ns.lease(keys, ttl_s=0).expires_in_s == 0.0
    with pytest.raises(kvtier.UsageError, match="owner"):
        ns.lease(keys, owner=7)  # type: ignore[arg-type]
