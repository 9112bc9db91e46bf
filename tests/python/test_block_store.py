"""The store as a whole: identities, clearing, closing, numbers and settings."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from payload import canary, payloads
from store_setup import BLOCK_BYTES, OpenStore, namespace_of

import kvtier


def test_two_ranks_with_the_same_tokens_read_back_their_own_a8(store: kvtier.BlockStore) -> None:
    ranks = [namespace_of(store, tp_size=2, rank=rank) for rank in (0, 1)]
    for rank, ns in enumerate(ranks):
        keys = ns.keys(range(16))
        assert ns.lookup(keys).num_blocks == 0
        ns.put(keys, payloads(keys, rank, BLOCK_BYTES))
    for rank, ns in enumerate(ranks):
        keys = ns.keys(range(16))
        out = canary(4, BLOCK_BYTES)
        assert ns.get(keys, out).num_blocks == 4
        np.testing.assert_array_equal(out, payloads(keys, rank, BLOCK_BYTES))


def test_the_same_raw_key_in_two_namespaces_is_two_blocks_b3(store: kvtier.BlockStore) -> None:
    tenants = [namespace_of(store, salt=salt) for salt in ("A", "B", None)]
    same = np.arange(16, dtype=np.uint8).reshape(1, 16)
    tenants[0].put(same, payloads(same, 0, BLOCK_BYTES))
    assert [ns.lookup(same).num_blocks for ns in tenants] == [1, 0, 0]
    assert len({bytes(ns.key(b"x")) for ns in tenants}) == 3


def test_layouts_of_one_size_do_not_mix_b5(store: kvtier.BlockStore) -> None:
    hnd, nhd = namespace_of(store, layout="HND"), namespace_of(store, layout="NHD")
    same = np.arange(16, dtype=np.uint8).reshape(1, 16)
    hnd.put(same, payloads(same, 0, BLOCK_BYTES))
    assert nhd.lookup(same).num_blocks == 0


def test_one_identity_gives_one_namespace_b6(store: kvtier.BlockStore) -> None:
    first, second = namespace_of(store, dtype="bf16"), namespace_of(store, dtype="torch.bfloat16")
    assert first.id == second.id
    assert len(first.id) == 32
    keys = first.keys(range(4))
    first.put(keys, payloads(keys, 0, BLOCK_BYTES))
    assert second.lookup(second.keys(range(4))).num_blocks == 1
    assert first.describe()["dtype"] == "bfloat16"
    assert (first.block_bytes, first.block_tokens) == (BLOCK_BYTES, 4)


def test_clear_empties_every_tier_and_says_how_much(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(16))
    ns.put(keys, payloads(keys, 1, BLOCK_BYTES))
    store.flush()
    cleared = store.clear()
    assert set(cleared) == {"host", "disk"}
    assert all(set(it) == {"blocks", "bytes", "pending_blocks"} for it in cleared.values())
    assert sum(it["blocks"] for it in cleared.values()) >= 4
    assert ns.lookup(keys, prefix=False).num_blocks == 0
    assert ns.put(keys, payloads(keys, 2, BLOCK_BYTES)).num_accepted == 4
    out = canary(4, BLOCK_BYTES)
    assert ns.get(keys, out).num_blocks == 4
    np.testing.assert_array_equal(out, payloads(keys, 2, BLOCK_BYTES))


def test_clear_of_an_unknown_tier_is_refused(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(4))
    ns.put(keys, bytes(BLOCK_BYTES))
    with pytest.raises(kvtier.UsageError, match="gpu"):
        store.clear(["host", "gpu"])
    assert ns.lookup(keys).num_blocks == 1
    assert store.clear(()) == {}
    assert set(store.clear("host")) == {"host"}


def test_one_tier_can_be_cleared_alone(open_store: OpenStore, disk_folder: Path) -> None:
    store = open_store(disk_folder / "store")
    ns = namespace_of(store)
    keys = ns.keys(range(16))
    ns.put(keys, payloads(keys, 1, BLOCK_BYTES))
    store.flush()
    assert store.clear(["host"])["host"]["blocks"] == 4
    assert ns.lookup(keys).tiers.tolist() == [2, 2, 2, 2]
    out = canary(4, BLOCK_BYTES)
    assert ns.get(keys, out).num_blocks == 4
    np.testing.assert_array_equal(out, payloads(keys, 1, BLOCK_BYTES))


def test_everything_after_close_says_closed(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(4))
    ns.put(keys, bytes(BLOCK_BYTES))
    lease = ns.lease(keys)
    store.close()
    store.close()
    calls: list[Callable[[], object]] = [
        lambda: ns.lookup(keys),
        lambda: ns.put(keys, bytes(BLOCK_BYTES)),
        lambda: ns.get(keys, bytearray(BLOCK_BYTES)),
        lambda: ns.delete(keys),
        lambda: ns.lease(keys),
        lease.release,
        lambda: lease.expires_in_s,
        store.flush,
        store.clear,
        store.stats,
        store.config,
        lambda: namespace_of(store),
    ]
    for call in calls:
        with pytest.raises(kvtier.ClosedError):
            call()
    assert "is_closed=True" in repr(store)


def test_a_with_block_closes_even_around_a_lease() -> None:
    with kvtier.open(host_bytes="4MiB") as store:
        ns = namespace_of(store)
        keys = ns.keys(range(4))
        ns.put(keys, bytes(BLOCK_BYTES))
        with ns.lease(keys):
            store.close()
    with pytest.raises(kvtier.ClosedError):
        store.stats()


def test_a_namespace_keeps_its_store_open() -> None:
    ns = namespace_of(kvtier.open(host_bytes="4MiB"))
    keys = ns.keys(range(4))
    assert ns.put(keys, bytes(BLOCK_BYTES)).num_accepted == 1
    assert ns.lookup(keys).num_blocks == 1


def test_a_block_too_large_for_every_tier_is_refused_with_both_numbers(
    store: kvtier.BlockStore,
) -> None:
    with pytest.raises(kvtier.ConfigError, match=str(1 << 40)):
        namespace_of(store, block_bytes=1 << 40)
    with pytest.raises(kvtier.ConfigError, match=str(300 << 20)):
        namespace_of(store, block_bytes=300 << 20)


def test_numbers_add_up_k3(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(40))
    ns.put(keys[:6], payloads(keys[:6], 1, BLOCK_BYTES))
    for _ in range(3):
        ns.lookup(keys)
    for _ in range(4):
        assert ns.get(keys, canary(10, BLOCK_BYTES)).num_blocks == 6
    stats = store.stats()
    host, disk = stats["tiers"]["host"], stats["tiers"]["disk"]  # type: ignore[index]
    assert (stats["lookups"], stats["lookup_blocks"]) == (3, 30)
    assert stats["get_blocks"] == 40
    assert stats["hit_blocks"] == 24
    assert stats["miss_blocks"] == 16
    assert host["hits"] + disk["hits"] == 24
    assert host["misses"] == 40 - host["hits"]
    for tier in (host, disk):
        assert tier["load_failures"] == tier["corrupt"] == 0
        assert tier["health"] in {"ok", "degraded", "stalled", "off"}
        assert all(isinstance(it, str) for it in tier["mode"].values())
        numbers = {name: it for name, it in tier.items() if name not in {"mode", "health"}}
        assert all(type(it) in {int, float} and it >= 0 for it in numbers.values())


def test_lookups_change_no_other_number(store: kvtier.BlockStore) -> None:
    ns = namespace_of(store)
    keys = ns.keys(range(16))
    ns.put(keys, payloads(keys, 1, BLOCK_BYTES))
    store.flush()
    before = store.stats()
    for _ in range(1000):
        ns.lookup(keys)
        ns.lookup(ns.keys(range(100, 116)))
    after = store.stats()
    for name in before:
        if name not in {"lookups", "lookup_blocks"}:
            assert after[name] == before[name], name


def test_the_settings_in_effect_are_shown_with_their_origin_k1(
    open_store: OpenStore, disk_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVTIER_STALL_S", "3")
    store = open_store(disk_folder / "store", config={"on_exit": "keep", "io": "threads"})
    config = store.config()
    assert config["host_bytes"] == {"value": 8 << 20, "origin": "argument"}
    assert config["stall_s"] == {"value": 3.0, "origin": "environment"}
    assert config["io"]["origin"] == "file"
    assert config["checksum"] == {"value": True, "origin": "default"}
    config["checksum"]["value"] = False
    assert store.config()["checksum"]["value"] is True


def test_auto_sizes_are_shown_as_numbers_with_their_reason() -> None:
    with kvtier.open(host_bytes="auto") as store:
        shown = store.config()["host_bytes"]
        assert isinstance(shown["value"], int)
        assert "20 %" in str(shown["note"])
        assert store.stats()["tiers"]["host"]["bytes_capacity"] > 0  # type: ignore[index]


def test_a_host_tier_beyond_memory_is_refused_with_the_sum_k7(disk_folder: Path) -> None:
    with pytest.raises(kvtier.ConfigError, match=r"need .*have .*reserve "):
        kvtier.open(disk_folder / "store", host_bytes="60TiB")
    assert not (disk_folder / "store").exists()


def test_a_missing_fingerprint_is_said_once(
    open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    with caplog.at_level(logging.WARNING, logger="kvtier"):
        for _ in range(3):
            namespace_of(store, model="nameless-weights", fingerprint=None)
    assert sum("nameless-weights" in it.getMessage() for it in caplog.records) == 1
