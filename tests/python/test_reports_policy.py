"""Public reports about tiers that serve nothing or wear out, by their letters. One thread."""

import logging
from pathlib import Path

import numpy as np
import pytest
from payload import canary, payloads
from store_setup import OpenStore, namespace_of

import kvtier
from kvtier.cli.main import main

BLOCK_BYTES = 4096


def key(ns: kvtier.Namespace, *words: int) -> np.ndarray:
    return ns.key(b"".join(word.to_bytes(4, "little") for word in words))


def put_chain(
    ns: kvtier.Namespace, name: int, num_blocks: int, request: str | None = None
) -> kvtier.PutResult:
    keys = np.stack([key(ns, name, depth) for depth in range(num_blocks)])
    return ns.put(keys, payloads(keys, 1, ns.block_bytes), request=request)


def use_chain(ns: kvtier.Namespace, name: int, num_blocks: int, request: str) -> int:
    """As an engine does: gets what is there, puts the rest. Returns the hits, all checked."""
    keys = np.stack([key(ns, name, depth) for depth in range(num_blocks)])
    out = canary(num_blocks, ns.block_bytes)
    num_there = ns.get(keys, out, request=request).num_blocks
    assert np.array_equal(out[:num_there], payloads(keys, 1, ns.block_bytes)[:num_there])
    if num_there < num_blocks:
        parent = keys[num_there - 1] if num_there else None
        rest = keys[num_there:]
        ns.put(rest, payloads(rest, 1, ns.block_bytes), parent=parent, request=request)
    return num_there


def fill_disk(store: kvtier.BlockStore, ns: kvtier.Namespace) -> int:
    """Puts chains of 4 until one is declined or evicts; returns how many chains there were."""
    for name in range(1_000_000, 1_100_000):
        put = put_chain(ns, name, 4)
        store.flush()
        disk = store.stats()["tiers"]["disk"]  # type: ignore[index]
        if put.num_accepted < 4 or disk["evicted"] or disk["declined"]:
            return name - 1_000_000
    raise AssertionError("the disk never filled")


NUM_HOT = 13
HOT_BLOCKS = 4


def use_hot(ns: kvtier.Namespace, name: str) -> int:
    """Uses each hot prompt once; returns the hits."""
    return sum(use_chain(ns, hot, HOT_BLOCKS, f"{name} {hot}") for hot in range(NUM_HOT))


def fill_with_hot_and_one_shots(ns: kvtier.Namespace, num_one_shots: int) -> None:
    """Hot prompts are put first and used all the time, a few one-shots come last."""
    for round_number in range(3):
        use_hot(ns, f"hot {round_number}")
    for one_shot in range(num_one_shots):
        use_chain(ns, 100 + one_shot, 8, f"once {one_shot}")
        if one_shot % 5 == 0 and one_shot + 5 < num_one_shots:
            assert use_hot(ns, f"between {one_shot}") == NUM_HOT * HOT_BLOCKS


@pytest.mark.parametrize("eviction", ["adaptive", "lru", "s3fifo"])
@pytest.mark.parametrize("disk_bytes", ["4MiB", "1MiB"])
def test_hot_prompts_survive_a_smaller_budget_and_one_shots_do_not_c3(
    open_store: OpenStore, disk_folder: Path, eviction: str, disk_bytes: str
) -> None:
    sizes = {"host_bytes": 0, "eviction": eviction}
    store = open_store(disk_folder / "s", disk_bytes="8MiB", **sizes)
    ns = namespace_of(store, block_bytes=BLOCK_BYTES)
    fill_with_hot_and_one_shots(ns, 600)
    assert store.stats()["tiers"]["disk"]["bytes_used"] > 6 << 20  # type: ignore[index]
    if eviction == "adaptive":  # The one-shots filled the room there was, and then no more.
        assert store.stats()["tiers"]["disk"]["inserted"] < 2100  # type: ignore[index]
    store.close()
    store = open_store(disk_folder / "s", disk_bytes=disk_bytes, **sizes)
    ns = namespace_of(store, block_bytes=BLOCK_BYTES)
    assert use_hot(ns, "again") == NUM_HOT * HOT_BLOCKS


@pytest.mark.parametrize("eviction", ["adaptive", "lru", "s3fifo"])
def test_hot_prompts_outlive_a_restart_and_new_one_shots_c3(
    open_store: OpenStore, disk_folder: Path, eviction: str
) -> None:
    sizes = {"host_bytes": 0, "disk_bytes": "4MiB", "eviction": eviction}
    store = open_store(disk_folder / "s", **sizes)
    ns = namespace_of(store, block_bytes=BLOCK_BYTES)
    fill_with_hot_and_one_shots(ns, 300)
    store.close()
    store = open_store(disk_folder / "s", **sizes)
    ns = namespace_of(store, block_bytes=BLOCK_BYTES)
    for turn in range(2):  # A full disk takes no first uses under the adaptive policy.
        for one_shot in range(25):
            use_chain(ns, 10_000 + one_shot, 8, f"turn {turn} {one_shot}")
    assert store.stats()["tiers"]["disk"]["evicted"] > 0  # type: ignore[index]
    assert use_hot(ns, "again") == NUM_HOT * HOT_BLOCKS


def test_a_uses_file_has_the_modes_of_all_files_and_goes_with_a_wipe_c3(
    open_store: OpenStore, disk_folder: Path
) -> None:
    store = open_store(disk_folder / "s", host_bytes=0, disk_bytes="4MiB")
    fill_with_hot_and_one_shots(namespace_of(store, block_bytes=BLOCK_BYTES), 10)
    store.close()
    uses_file = disk_folder / "s" / "kvtier.uses"
    assert uses_file.stat().st_mode & 0o777 == 0o600
    assert main(["inspect", str(disk_folder / "s")]) == 0
    assert main(["verify", str(disk_folder / "s")]) == 0
    assert main(["wipe", "--yes", str(disk_folder / "s")]) == 0
    assert list((disk_folder / "s").iterdir()) == []


@pytest.mark.parametrize("eviction", ["adaptive", "lru", "s3fifo"])
def test_every_stored_chain_has_its_head_on_disk_after_a_restart_c9(
    open_store: OpenStore, disk_folder: Path, eviction: str
) -> None:
    sizes = {"host_bytes": "1MiB", "disk_bytes": "4MiB", "eviction": eviction}
    store = open_store(disk_folder / "s", **sizes)
    ns = namespace_of(store, block_bytes=BLOCK_BYTES)
    for name in range(200):
        use_chain(ns, name % 60, 16, f"r {name}")
        if name % 20 == 0:
            store.flush()
    store.flush()
    store.close()
    store = open_store(disk_folder / "s", **sizes)
    ns = namespace_of(store, block_bytes=BLOCK_BYTES)
    num_stored = num_reachable = 0
    for name in range(60):
        keys = np.stack([key(ns, name, depth) for depth in range(16)])
        num_stored += int(ns.lookup(keys, prefix=False).mask.sum())
        num_reachable += ns.lookup(keys).num_blocks
    assert num_stored == num_reachable > 0


def test_a_tier_that_was_written_over_and_served_nothing_says_so_once_c10(
    open_store: OpenStore, disk_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kvtier")
    store = open_store(disk_folder / "s", host_bytes=0, disk_bytes="4MiB", eviction="lru")
    ns = namespace_of(store, block_bytes=BLOCK_BYTES)
    for name in range(200):
        put_chain(ns, name, 8)
        assert ns.lookup(np.stack([key(ns, name, 99)])).num_blocks == 0
    disk = store.stats()["tiers"]["disk"]  # type: ignore[index]
    assert disk["unserved_bytes"] == disk["bytes_written"] > disk["bytes_capacity"]
    lines = [line.message for line in caplog.records if "served nothing" in line.message]
    assert len(lines) == 1
    assert "disk tier" in lines[0]
    assert use_chain(ns, 199, 8, "reader") == 8
    assert store.stats()["tiers"]["disk"]["unserved_bytes"] == 0  # type: ignore[index]


def test_a_tier_that_serves_says_nothing_c10(
    open_store: OpenStore, disk_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kvtier")
    store = open_store(disk_folder / "s", host_bytes=0, disk_bytes="4MiB", eviction="lru")
    ns = namespace_of(store, block_bytes=BLOCK_BYTES)
    for name in range(200):
        put_chain(ns, name, 8)
        assert use_chain(ns, name, 8, f"r {name}") == 8
    assert not [line for line in caplog.records if "served nothing" in line.message]


def test_the_calls_of_one_request_are_one_use_c11(open_store: OpenStore, disk_folder: Path) -> None:
    store = open_store(disk_folder / "s", host_bytes=0, disk_bytes="2MiB")
    ns = namespace_of(store, block_bytes=BLOCK_BYTES)
    fill_disk(store, ns)
    for _ in range(5):
        assert put_chain(ns, 7, 1, request="one").num_accepted == 0
    assert put_chain(ns, 7, 1, request="two").num_accepted == 1
    assert use_chain(ns, 7, 1, "three") == 1


@pytest.mark.parametrize("host_bytes", [0, "1MiB"])
def test_one_touch_blocks_do_not_wear_out_a_full_disk_d9(
    open_store: OpenStore, disk_folder: Path, host_bytes: int | str
) -> None:
    store = open_store(disk_folder / "s", host_bytes=host_bytes, disk_bytes="8MiB")
    ns = namespace_of(store, block_bytes=BLOCK_BYTES)
    fill_disk(store, ns)
    before = store.stats()["tiers"]["disk"]["bytes_written"]  # type: ignore[index]
    offered_bytes = num_hot = num_hot_hits = 0
    for number in range(3000):
        is_hot = number % 10 == 0
        name = number // 10 % 20 if is_hot else 10_000 + number
        num_there = use_chain(ns, name, 4, f"r {number}")
        offered_bytes += 4 * BLOCK_BYTES
        if is_hot and number >= 1000:
            num_hot += 4
            num_hot_hits += num_there
        if number % 50 == 0:
            store.flush()
    store.flush()
    written = store.stats()["tiers"]["disk"]["bytes_written"] - before  # type: ignore[index]
    assert written <= 0.2 * offered_bytes
    assert num_hot_hits >= 0.9 * num_hot


@pytest.mark.parametrize(("disk_bytes", "is_said"), [("4MiB", True), ("64MiB", False)])
def test_a_tier_no_larger_than_the_one_above_it_is_said_at_open_c13(
    open_store: OpenStore,
    disk_folder: Path,
    caplog: pytest.LogCaptureFixture,
    disk_bytes: str,
    is_said: bool,
) -> None:
    caplog.set_level(logging.WARNING, "kvtier")
    open_store(disk_folder / "s", host_bytes="8MiB", disk_bytes=disk_bytes)
    assert (
        any("not larger than the host tier" in line.message for line in caplog.records) == is_said
    )
