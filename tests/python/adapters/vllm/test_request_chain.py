"""The blocks of one request as keys."""

import hashlib
from collections.abc import Callable, Iterator

import pytest

import kvtier
from kvtier.adapters.vllm.request_chain import RequestChain, RequestRules


@pytest.fixture
def namespace() -> Iterator[kvtier.Namespace]:
    with kvtier.open(host_bytes="1MiB") as store:
        yield store.namespace(model="m", block_bytes=4096, fingerprint="f")


def hashes_of(num_blocks: int, request: int = 0) -> list[bytes]:
    return [hashlib.sha256(b"%d %d" % (request, it)).digest() for it in range(num_blocks)]


@pytest.fixture
def make_chain() -> Callable[..., RequestChain]:
    def make(hashes: list[bytes], context: bytes = b"") -> RequestChain:
        return RequestChain(hashes, context=context, num_prompt_blocks=1, rules=RequestRules())

    return make


def test_keys_are_the_namespace_s_own(
    namespace: kvtier.Namespace, make_chain: Callable[..., RequestChain]
) -> None:
    hashes = hashes_of(5)
    keys = make_chain(hashes).keys(namespace, 1, 4)
    assert keys.tolist() == [namespace.key(it).tolist() for it in hashes[1:4]]
    assert make_chain(hashes).keys(namespace, 2, 2).shape == (0, 16)


def test_blocks_that_were_generated_later_get_keys(
    namespace: kvtier.Namespace, make_chain: Callable[..., RequestChain]
) -> None:
    hashes = hashes_of(2)
    chain = make_chain(hashes)
    before = chain.keys(namespace, 0, 2)
    hashes.append(hashes_of(3)[2])
    assert chain.num_blocks == 3
    assert chain.keys(namespace, 0, 3)[:2].tolist() == before.tolist()
    assert chain.find(hashes[2]) == 2


def test_another_context_gives_other_keys(
    namespace: kvtier.Namespace, make_chain: Callable[..., RequestChain]
) -> None:
    hashes = hashes_of(3)
    chain = make_chain(hashes)
    before = {key.tobytes() for key in chain.keys(namespace, 0, 3)}
    chain.found_end = 3
    chain.change_context(b"e" * 16)
    after = {key.tobytes() for key in chain.keys(namespace, 0, 3)}
    assert not before & after
    assert chain.found_end == 0
    assert after == {it.tobytes() for it in make_chain(hashes, b"e" * 16).keys(namespace, 0, 3)}


def test_blocks_are_found_in_any_order(make_chain: Callable[..., RequestChain]) -> None:
    hashes = hashes_of(6)
    chain = make_chain(hashes)
    chain.seek(2)
    assert [chain.find(hashes[it]) for it in (2, 3, 5, 0, 1)] == [2, 3, 5, 0, 1]
    assert chain.find(b"unknown") is None


def test_a_run_ends_where_blocks_stop_following(make_chain: Callable[..., RequestChain]) -> None:
    hashes = hashes_of(6)
    chain = make_chain(hashes)
    assert chain.find_run(hashes[1:4]) == (1, 4)
    assert chain.find_run([hashes[1], hashes[2], hashes[4]]) == (1, 3)
    assert chain.find_run(hashes[4:] + hashes_of(1, request=9)) == (4, 6)
    assert chain.find_run([b"unknown"]) is None
    assert chain.find_run([]) is None
