"""Bounds of the store under load: bytes written, descriptors, time, and small host tiers."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from child_process import without_machine_warnings
from payload import canary, payloads
from store_setup import BLOCK_BYTES, OpenStore, namespace_of

import kvtier

ROOT = Path(__file__).resolve().parents[2]


def put_all(ns: kvtier.Namespace, store: kvtier.BlockStore, num_blocks: int, step: int) -> None:
    """Puts independent blocks in steps, each flushed, so that nothing is declined."""
    for start in range(0, num_blocks, step):
        keys = np.stack([ns.key(i.to_bytes(4, "little")) for i in range(start, start + step)])
        put = ns.put(keys, payloads(keys, 1, ns.block_bytes), chain=False)
        assert put.num_accepted == step
        store.flush()


def test_growing_a_chain_block_by_block_writes_each_block_once_d8(
    open_store: OpenStore, disk_folder: Path
) -> None:
    store = open_store(disk_folder / "store", disk_bytes="256MiB")
    block_bytes = 65536
    ns = namespace_of(store, block_bytes=block_bytes)
    keys = ns.keys(range(4 * 1000))
    parent = None
    for key in keys:
        data = payloads(key.reshape(1, 16), 1, block_bytes)
        if ns.put([key], data, parent=parent).num_accepted == 0:
            # Faster than the disk, and the whole chain hangs on what waits for it.
            store.flush()
            assert ns.put([key], data, parent=parent).num_accepted == 1
        parent = key
    flushed = store.flush()
    disk = store.stats()["tiers"]["disk"]  # type: ignore[index]
    assert disk["blocks"] == flushed.durable_blocks
    assert disk["bytes_written"] <= 1.1 * block_bytes * disk["inserted"] + (1 << 20)


def test_ten_thousand_blocks_fit_into_64_descriptors_d11(disk_folder: Path) -> None:
    code = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import kvtier
with kvtier.open(sys.argv[1], host_bytes="2MiB", disk_bytes="512MiB") as store:
    for block_bytes in (4096, 5000, 9000, 20000):
        ns = store.namespace(model="m", block_bytes=block_bytes, fingerprint="f")
        for start in range(0, 2500, 50):
            words = [i.to_bytes(4, "little") for i in range(start, start + 50)]
            keys = [ns.key(word) for word in words]
            data = b"".join(word * (block_bytes // 4) for word in words)
            assert ns.put(keys, data, chain=False).num_accepted == 50
            store.flush()
    num_hits = 0
    for block_bytes in (4096, 5000, 9000, 20000):
        ns = store.namespace(model="m", block_bytes=block_bytes, fingerprint="f")
        for i in range(2500):
            out = bytearray(block_bytes)
            num_hits += ns.get([ns.key(i.to_bytes(4, "little"))], out).num_blocks
            assert out == i.to_bytes(4, "little") * (block_bytes // 4)
    assert num_hits == 10_000, num_hits
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(disk_folder / "store")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    done = without_machine_warnings(done)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_was_looked_up_and_leased_survives_a_flood_c4(
    open_store: OpenStore, disk_folder: Path
) -> None:
    store = open_store(disk_folder / "store", host_bytes="1MiB", disk_bytes="4MiB")
    ns = namespace_of(store)
    keys = ns.keys(range(40))
    data = payloads(keys, 1, BLOCK_BYTES)
    assert ns.put(keys, data).num_accepted == 10
    with ns.lease(keys) as lease:
        assert lease.num_blocks == 10
        for i in range(2000):
            key = ns.key(b"flood" + i.to_bytes(4, "little"))
            ns.put([key], bytes(BLOCK_BYTES), request=i)
        out = canary(10, BLOCK_BYTES)
        assert ns.get(keys, out).num_blocks == 10
        np.testing.assert_array_equal(out, data)


def test_a_full_or_fully_leased_host_tier_never_blocks_a_load(
    open_store: OpenStore, disk_folder: Path
) -> None:
    store = open_store(disk_folder / "store", host_bytes="1MiB")
    ns = namespace_of(store)
    put_all(ns, store, 200, 50)
    store.clear(["host"])
    keys = np.stack([ns.key(i.to_bytes(4, "little")) for i in range(200)])
    held = ns.lease(keys, prefix=False)
    for start in range(0, 200, 20):
        part = keys[start : start + 20]
        out = canary(20, BLOCK_BYTES)
        assert ns.get(part, out).num_blocks == 20
        np.testing.assert_array_equal(out, payloads(part, 1, BLOCK_BYTES))
    assert held.release() is True


def fastest_s(call: Callable[[], object], num_runs: int = 5) -> float:
    times = []
    for _ in range(num_runs):
        start_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - start_s)
    return min(times)


def test_two_hundred_thousand_small_blocks_reopen_in_a_second_h3(
    open_store: OpenStore, disk_folder: Path
) -> None:
    num_blocks, block_bytes = 200_000, 64
    store = open_store(disk_folder / "store", host_bytes="128MiB", disk_bytes="512MiB")
    ns = namespace_of(store, block_bytes=block_bytes, block_tokens=1)
    keys = ns.keys(range(num_blocks))
    data = np.zeros((num_blocks, block_bytes), dtype=np.uint8)
    data[:, :16] = keys
    stored = 0
    for _ in range(200):
        parent = keys[stored - 1] if stored else None
        end = min(num_blocks, stored + 20_000)
        stored += ns.put(keys[stored:end], data[stored:end], parent=parent).num_accepted
        if stored == num_blocks:
            break
        store.flush()
    assert stored == num_blocks
    store.flush()
    store.close()
    start_s = time.perf_counter()
    store = open_store(disk_folder / "store", host_bytes="128MiB", disk_bytes="512MiB")
    assert time.perf_counter() - start_s < 1
    assert store.stats()["recovered_blocks"] == num_blocks
    ns = namespace_of(store, block_bytes=block_bytes, block_tokens=1)
    assert ns.lookup(keys).num_blocks == num_blocks
    few = keys[:1000]
    assert fastest_s(lambda: ns.lookup(few)) / len(few) < 5e-6


def test_lookups_that_miss_take_no_memory_g6(open_store: OpenStore) -> None:
    store = open_store()
    ns = namespace_of(store)
    before = store.stats()
    for i in range(10_000):
        ns.lookup([ns.key(i.to_bytes(4, "little"))])
    after = store.stats()
    assert after["index_bytes"] == before["index_bytes"]
    assert after["tiers"] == before["tiers"]
    assert after["lookup_blocks"] == before["lookup_blocks"] + 10_000  # type: ignore[operator]
