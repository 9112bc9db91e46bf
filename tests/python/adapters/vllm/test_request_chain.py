"""The blocks of one request as keys."""

import hashlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import kvtier
from kvtier.adapters.vllm.request_chain import PrefetchWait, RequestChain, make_keys

FOUND = np.ones(8, dtype=np.bool_)


@pytest.fixture
def namespace() -> Iterator[kvtier.Namespace]:
    with kvtier.open(host_bytes="1MiB") as store:
        yield store.namespace(model="m", block_bytes=4096, fingerprint="f")


def hashes_of(num_blocks: int, request: int = 0) -> list[bytes]:
    return [hashlib.sha256(b"%d %d" % (request, it)).digest() for it in range(num_blocks)]


@pytest.fixture
def make_chain() -> Callable[..., RequestChain]:
    def make(hashes: list[bytes], context: bytes = b"") -> RequestChain:
        return RequestChain(hashes, context=context, num_prompt_blocks=1)

    return make


def test_each_block_has_a_key_of_its_own_in_each_namespace(
    namespace: kvtier.Namespace, make_chain: Callable[..., RequestChain]
) -> None:
    hashes = hashes_of(50)
    with kvtier.open(host_bytes="1MiB") as store:
        other = store.namespace(model="n", block_bytes=4096, fingerprint="f")
        made = [*make_chain(hashes).keys(namespace, 0, 50), *make_chain(hashes).keys(other, 0, 50)]
    assert len({key.tobytes() for key in made}) == 100
    assert make_chain(hashes).keys(namespace, 2, 2).shape == (0, 16)


@pytest.mark.parametrize("hash_bytes", [8, 16, 32])
def test_keys_do_not_hang_on_how_many_are_made_at_once(
    hash_bytes: int, namespace: kvtier.Namespace, make_chain: Callable[..., RequestChain]
) -> None:
    hashes = [it[:hash_bytes] for it in hashes_of(5)]
    whole = make_chain(hashes).keys(namespace, 0, 5)
    chain = make_chain(hashes)
    parts = [chain.keys(namespace, it, it + 1)[0].tolist() for it in range(5)]
    assert parts == whole.tolist()
    assert len({tuple(it) for it in parts}) == 5
    assert make_chain(hashes).keys(namespace, 1, 4).tolist() == parts[1:4]


def test_keys_stay_the_same_for_what_is_on_disk(namespace: kvtier.Namespace) -> None:
    # A change here loses every block that an engine stored.
    mask = namespace.key(b"vllm block 1\0" + b"c" * 16)
    (key,) = make_keys(namespace, hashes_of(1), b"c" * 16)
    assert key.tobytes() == bytes(
        a ^ b for a, b in zip(hashes_of(1)[0][:16], mask.tobytes(), strict=True)
    )
    (short,) = make_keys(namespace, [b"12345678"], b"c" * 16)
    assert short.tolist() == namespace.key(b"12345678" + b"c" * 16).tolist()


def test_blocks_that_were_generated_later_get_keys(
    namespace: kvtier.Namespace, make_chain: Callable[..., RequestChain]
) -> None:
    hashes = hashes_of(2)
    chain = make_chain(hashes)
    before = chain.keys(namespace, 0, 2)
    hashes.append(hashes_of(3)[2])
    assert chain.num_blocks == 3
    assert chain.keys(namespace, 0, 3)[:2].tolist() == before.tolist()
    assert chain.find_run(hashes[2:]) == (2, 3)


def test_hashes_that_changed_under_the_request_get_keys_of_their_own(
    namespace: kvtier.Namespace, make_chain: Callable[..., RequestChain]
) -> None:
    hashes = hashes_of(4)
    chain = make_chain(hashes)
    before = chain.keys(namespace, 0, 4).tolist()
    hashes[2:] = hashes_of(4, request=1)[2:]
    after = chain.keys(namespace, 0, 4).tolist()
    assert after[:2] == before[:2]
    assert after == make_chain(list(hashes)).keys(namespace, 0, 4).tolist()
    assert after[2:] != before[2:]
    del hashes[1:]
    assert chain.keys(namespace, 0, 1).tolist() == before[:1]


def test_another_context_gives_other_keys(
    namespace: kvtier.Namespace, make_chain: Callable[..., RequestChain]
) -> None:
    hashes = hashes_of(3)
    chain = make_chain(hashes)
    before = {key.tobytes() for key in chain.keys(namespace, 0, 3)}
    after = {it.tobytes() for it in make_chain(hashes, b"e" * 16).keys(namespace, 0, 3)}
    assert not before & after


def test_what_was_found_is_what_was_noted_last(make_chain: Callable[..., RequestChain]) -> None:
    hashes = hashes_of(6)
    chain = make_chain(hashes)
    chain.set_found(2, FOUND[:3])
    assert chain.found == set(hashes[2:5])
    chain.set_found(2, np.array([True, False, True, False]))
    assert chain.found == {hashes[2], hashes[4]}
    chain.set_found(2, FOUND[:0])
    assert chain.found == set()


def test_a_run_is_counted_up_to_the_first_block_that_was_not_found(
    make_chain: Callable[..., RequestChain],
) -> None:
    hashes = hashes_of(6)
    chain = make_chain(hashes)
    chain.set_found(2, np.array([True, True, False]))

    def count(run: list[bytes]) -> int:
        return chain.count_found(run[0], run[-1], len(run))

    assert [count(hashes[2:end]) for end in (3, 4, 5, 6)] == [1, 2, 2, 2]
    # Not from where was looked up, not of this request, or longer than it.
    assert count(hashes[1:3]) == 0
    assert count(hashes[3:5]) == 0
    assert count([*hashes[2:5], hashes_of(6, request=1)[5]]) == 0
    assert count([*hashes[2:], hashes[-1]]) == 0
    chain.set_found(2, np.ones(0, dtype=np.bool_))
    assert count(hashes[2:4]) == 0


def test_what_was_found_goes_by_the_hashes_that_the_request_has_now(
    make_chain: Callable[..., RequestChain],
) -> None:
    hashes = hashes_of(4)
    chain = make_chain(hashes)
    chain.set_found(0, np.ones(4, dtype=np.bool_))
    assert chain.found == set(hashes)
    hashes[2:] = hashes_of(4, request=1)[2:]
    chain.set_found(0, np.ones(4, dtype=np.bool_))
    assert chain.found == set(hashes)


def test_runs_are_found_in_any_order(make_chain: Callable[..., RequestChain]) -> None:
    hashes = hashes_of(6)
    chain = make_chain(hashes)
    found = [chain.find_run([hashes[it]]) for it in (2, 3, 5, 0, 1)]
    assert found == [(it, it + 1) for it in (2, 3, 5, 0, 1)]


def test_a_run_ends_where_blocks_stop_following(make_chain: Callable[..., RequestChain]) -> None:
    hashes = hashes_of(6)
    chain = make_chain(hashes)
    assert chain.find_run(hashes[1:4]) == (1, 4)
    assert chain.find_run([hashes[1], hashes[2], hashes[4]]) == (1, 3)
    assert chain.find_run(hashes[4:] + hashes_of(1, request=9)) == (4, 6)
    assert chain.find_run([b"unknown"]) is None
    assert chain.find_run([]) is None


def test_a_wait_goes_on_while_blocks_come_nearer() -> None:
    wait = PrefetchWait(until_s=101.0, num_asked=4, is_turn=True)
    times = [(100.0, 0), (100.04, 1), (100.08, 2), (100.12, 2)]
    assert [wait.goes_on(now_s, num_near, 0.05) for now_s, num_near in times] == [True] * 4
    assert not wait.goes_on(100.14, 2, 0.05)


def test_nobody_loses_patience_before_its_turn() -> None:
    wait = PrefetchWait(until_s=110.0, num_asked=4)
    assert wait.goes_on(100.0, 0, 0.05)
    assert wait.goes_on(103.0, 0, 0.05)
    wait.is_turn = True
    assert wait.goes_on(103.04, 0, 0.05)
    assert not wait.goes_on(103.06, 0, 0.05)


def test_a_wait_ends_at_its_deadline_whatever_comes_nearer() -> None:
    wait = PrefetchWait(until_s=101.0, num_asked=9, is_turn=True)
    assert wait.goes_on(100.9, 5, 0.05)
    assert not wait.goes_on(101.0, 6, 0.05)
