"""Calls on a namespace: what goes in, what comes out, what is refused."""

from collections.abc import Callable

import numpy as np
import pytest
from payload import canary, payload, payloads
from store_setup import BLOCK_BYTES, namespace_of

import kvtier
from kvtier import Outcome


def test_what_was_put_is_what_is_got(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(40))
    data = payloads(keys, 1, BLOCK_BYTES)
    put = ns.put(keys, data)
    assert put.num_accepted == 10
    assert put.outcomes == [Outcome.DONE] * 10
    found = ns.lookup(keys)
    assert found.num_blocks == 10
    assert found.mask.dtype == np.bool_
    assert found.mask.all()
    assert found.tiers.dtype == np.uint8
    assert set(found.tiers.tolist()) <= {1, 2}
    out = canary(10, BLOCK_BYTES)
    got = ns.get(keys, out)
    assert (got.num_blocks, got.outcomes) == (10, [Outcome.DONE] * 10)
    assert got.mask.all()
    np.testing.assert_array_equal(out, data)


def test_a_changed_token_misses_from_there_on_a8(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(40))
    ns.put(keys, payloads(keys, 1, BLOCK_BYTES))
    changed = ns.keys([*range(20), 999, *range(21, 40)])
    assert ns.lookup(changed).num_blocks == 5
    out = canary(10, BLOCK_BYTES)
    got = ns.get(changed, out)
    assert got.num_blocks == 5
    assert got.outcomes == [Outcome.DONE] * 5 + [Outcome.MISS] * 5
    np.testing.assert_array_equal(out[:5], payloads(keys[:5], 1, BLOCK_BYTES))
    np.testing.assert_array_equal(out[5:], canary(5, BLOCK_BYTES))


def test_a_hole_ends_a_prefix_and_only_a_prefix(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = np.stack([ns.key(bytes([i])) for i in range(1, 7)])
    stored = [0, 1, 3, 5]
    data = payloads(keys, 1, BLOCK_BYTES)
    assert ns.put(keys[stored], data[stored], chain=False).num_accepted == 4
    assert ns.lookup(keys).num_blocks == 2
    assert ns.lookup(keys).mask.tolist() == [True, True, False, False, False, False]
    found = ns.lookup(keys, prefix=False)
    assert found.num_blocks == 4
    assert found.mask.tolist() == [i in stored for i in range(6)]
    out = canary(6, BLOCK_BYTES)
    assert ns.get(keys, out).num_blocks == 2
    np.testing.assert_array_equal(out[2:], canary(4, BLOCK_BYTES))
    out = canary(6, BLOCK_BYTES)
    got = ns.get(keys, out, prefix=False)
    assert got.mask.tolist() == [i in stored for i in range(6)]
    np.testing.assert_array_equal(out[stored], data[stored])
    np.testing.assert_array_equal(out[[2, 4]], canary(2, BLOCK_BYTES))


def test_a_missing_key_changes_nothing_a5(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(32))
    out = canary(8, BLOCK_BYTES)
    got = ns.get(keys, out)
    assert (got.num_blocks, got.outcomes) == (0, [Outcome.MISS] * 8)
    np.testing.assert_array_equal(out, canary(8, BLOCK_BYTES))


def test_a_get_of_a_middle_range_stays_inside_a9(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(32))
    ns.put(keys, payloads(keys, 1, BLOCK_BYTES))
    room = np.full(3 * BLOCK_BYTES + 128, 0xA5, dtype=np.uint8)
    assert ns.get(keys[2:5], room[64:-64]).num_blocks == 3
    np.testing.assert_array_equal(room[64:-64].reshape(3, -1), payloads(keys[2:5], 1, BLOCK_BYTES))
    assert (room[:64] == 0xA5).all()
    assert (room[-64:] == 0xA5).all()


def test_nothing_is_a_fine_number_of_blocks(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    for keys in (ns.keys([]), [], np.zeros((0, 16), dtype=np.uint8)):
        assert ns.lookup(keys).num_blocks == 0
        assert ns.put(keys, b"").num_accepted == 0
        assert ns.get(keys, bytearray()).outcomes == []
        assert ns.delete(keys) == 0
        with ns.lease(keys) as lease:
            assert lease.num_blocks == 0


def test_wrong_sizes_are_refused_and_nothing_is_written_a7(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store, block_bytes=528)
    keys = ns.keys(range(8))
    before = store.stats()
    for data in (
        bytes(2 * 512),
        bytes(528),
        [bytes(528)],
        [bytes(528), bytes(512)],
        bytes(3 * 528),
    ):
        with pytest.raises(kvtier.UsageError, match=r"expected \d+ .*got \d+"):
            ns.put(keys, data)
    for out in (bytearray(2 * 512), bytes(2 * 528), [bytearray(528), bytearray(512)]):
        with pytest.raises(kvtier.UsageError):
            ns.get(keys, out)
    assert ns.lookup(keys).num_blocks == 0
    after = store.stats()
    assert after["tiers"] == before["tiers"]


def test_putting_again_writes_nothing(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(16))
    ns.put(keys, payloads(keys, 1, BLOCK_BYTES))
    store.flush()
    before = store.stats()["tiers"]
    assert ns.put(keys, payloads(keys, 1, BLOCK_BYTES)).num_accepted == 4
    store.flush()
    after = store.stats()["tiers"]
    for tier in ("host", "disk"):
        assert after[tier]["inserted"] == before[tier]["inserted"]  # type: ignore[index]
        assert after[tier]["blocks"] == before[tier]["blocks"]  # type: ignore[index]


def test_a_child_of_an_unknown_parent_is_declined(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(16))
    data = payloads(keys, 1, BLOCK_BYTES)
    assert ns.put(keys[2:], data[2:], parent=keys[1]).outcomes == [Outcome.DECLINED] * 2
    assert ns.lookup(keys, prefix=False).num_blocks == 0
    assert ns.put(keys[:2], data[:2]).num_accepted == 2
    assert ns.put(keys[2:], data[2:], parent=bytes(keys[1])).num_accepted == 2
    assert ns.lookup(keys).num_blocks == 4


@pytest.mark.parametrize("parent", [b"short", "text", 7, np.zeros((1, 16), dtype=np.uint8)])
def test_a_parent_that_is_no_key_is_refused(store: kvtier.BlockStore, parent: object) -> None:
    ns = namespace_of(store)
    with pytest.raises(kvtier.UsageError, match="parent"):
        ns.put(ns.keys(range(4)), bytes(BLOCK_BYTES), parent=parent)


@pytest.mark.parametrize("timeout_s", [-1, -0.001, float("nan"), "5", True, [1]])
def test_a_timeout_that_is_none_is_refused(store: kvtier.BlockStore, timeout_s: object) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(4))
    calls: list[Callable[[], object]] = [
        lambda: ns.put(keys, bytes(BLOCK_BYTES), timeout_s=timeout_s),  # type: ignore[arg-type]
        lambda: ns.get(keys, bytearray(BLOCK_BYTES), timeout_s=timeout_s),  # type: ignore[arg-type]
        lambda: ns.lease(keys, ttl_s=timeout_s),  # type: ignore[arg-type]
        lambda: store.flush(timeout_s=timeout_s),  # type: ignore[arg-type]
        lambda: store.close(timeout_s=timeout_s),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(kvtier.UsageError):
            call()
    assert ns.lookup(keys).num_blocks == 0


def test_an_infinite_timeout_is_taken(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(4))
    assert ns.put(keys, bytes(BLOCK_BYTES), timeout_s=float("inf")).num_accepted == 1
    assert store.flush(timeout_s=float("inf")) is not None


def test_flags_that_are_no_booleans_are_refused(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(4))
    with pytest.raises(kvtier.UsageError, match="prefix"):
        ns.lookup(keys, prefix="no")  # type: ignore[arg-type]
    with pytest.raises(kvtier.UsageError, match="chain"):
        ns.put(keys, bytes(BLOCK_BYTES), chain=1)  # type: ignore[arg-type]


def test_nothing_is_cut_before_a_rate_is_known(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(40))
    ns.put(keys, payloads(keys, 1, BLOCK_BYTES))
    for max_load_s in (None, 0, 1e-9, 3, float("inf")):
        assert ns.lookup(keys, max_load_s=max_load_s).num_blocks == 10


@pytest.mark.parametrize("value", [-1, -1e-9, float("nan"), "1", True, b"1", [1]])
def test_a_load_time_that_is_none_is_refused(store: kvtier.BlockStore, value: object) -> None:
    ns = namespace_of(store)
    with pytest.raises(kvtier.UsageError, match="max_load_s"):
        ns.lookup(ns.keys(range(4)), max_load_s=value)  # type: ignore[arg-type]


def test_pins_are_counted_and_bounded(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(40))
    assert ns.pin(keys) == 0
    ns.put(keys[:6], payloads(keys[:6], 1, BLOCK_BYTES))
    assert ns.pin(keys) == 6
    assert ns.pin(keys[:2]) == 2
    store.flush()
    pinned_bytes = [it["pinned_bytes"] for it in store.stats()["tiers"].values()]  # type: ignore[attr-defined]
    assert sorted(pinned_bytes) == [0, 6 * 12_288]
    assert [ns.unpin(keys) for _ in range(3)] == [6, 2, 0]
    # A quarter of the tier, and no more.
    many = ns.keys(range(4 * 2000))
    for first in range(0, 2000, 200):
        data = payloads(many[first : first + 200], 1, BLOCK_BYTES)
        ns.put(many[first : first + 200], data, parent=many[first - 1] if first else None)
        store.flush()
    num_pinned = ns.pin(many)
    assert 0 < num_pinned < ns.lookup(many).num_blocks
    for tier in store.stats()["tiers"].values():  # type: ignore[attr-defined]
        assert tier["pinned_bytes"] <= tier["bytes_capacity"] / 4
    assert ns.delete(many[:1]) > 0
    assert all(it["pinned_bytes"] == 0 for it in store.stats()["tiers"].values())  # type: ignore[attr-defined]


def test_deleting_takes_the_descendants_along(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(40))
    ns.put(keys, payloads(keys, 1, BLOCK_BYTES))
    assert ns.delete(keys[4:5]) == 6
    assert ns.lookup(keys).num_blocks == 4
    assert ns.lookup(keys, prefix=False).num_blocks == 4
    assert ns.delete(keys) == 4
    assert ns.delete(keys) == 0


def test_blocks_of_several_sizes_and_of_one_byte_live_together(store: kvtier.BlockStore) -> None:
    for block_bytes in (1, 3, 511, 4096, 4097, 100_001, 262_144):
        ns = namespace_of(store, block_bytes=block_bytes)
        keys = ns.keys(range(12))
        assert ns.put(keys, payloads(keys, 1, block_bytes)).num_accepted == 3
    for block_bytes in (1, 3, 511, 4096, 4097, 100_001, 262_144):
        ns = namespace_of(store, block_bytes=block_bytes)
        keys = ns.keys(range(12))
        out = canary(3, block_bytes)
        assert ns.get(keys, out).num_blocks == 3
        np.testing.assert_array_equal(out, payloads(keys, 1, block_bytes))


def test_blocks_of_parts_come_back_whole_c12(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store, parts=[4096, 0, 5000, 904])
    keys = ns.keys(range(16))
    assert ns.put(keys, payloads(keys, 1, BLOCK_BYTES)).num_accepted == 4
    out = [bytearray(BLOCK_BYTES) for _ in range(4)]
    assert ns.get(keys, out).num_blocks == 4
    assert [bytes(it) for it in out] == [payload(key, 1, BLOCK_BYTES).tobytes() for key in keys]
