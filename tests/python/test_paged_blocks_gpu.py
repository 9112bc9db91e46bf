"""ns.attach, save and load on tensors of a GPU: right bytes, after the right work, of each tier."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtier
from kvtier import PagedGeometry

pytestmark = pytest.mark.gpu
torch: Any = pytest.importorskip("torch")

MIB = 1 << 20
NUM_ROWS = 128
NUM_LAYERS = 28
SHAPE = (NUM_ROWS, 4, 16, 256)  # Rows, KV heads, tokens, K and V of 128 numbers: 32 KiB a layer.
BLOCK_BYTES = NUM_LAYERS * 4 * 16 * 256 * 2
# Long enough that nothing that forgot to wait for it would find its bytes.
SLEEP_CYCLES = 400_000_000


def make_layers(seed: int) -> list[Any]:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return [
        torch.randint(-30000, 30000, SHAPE, generator=generator, device="cuda", dtype=torch.int16)
        for _ in range(NUM_LAYERS)
    ]


def rows_of(layers: list[Any], block_ids: list[int]) -> np.ndarray:
    rows = [torch.cat([layer[block_id].flatten() for layer in layers]) for block_id in block_ids]
    found: np.ndarray = torch.stack(rows).cpu().numpy()
    return found


@pytest.fixture
def store(disk_folder: Path) -> Iterator[kvtier.BlockStore]:
    with open_store(disk_folder) as opened:
        yield opened


def open_store(folder: Path, **settings: Any) -> kvtier.BlockStore:
    return kvtier.open(
        folder / "store", **{"host_bytes": 512 * MIB, "disk_bytes": 1024 * MIB, **settings}
    )


def namespace_of(store: kvtier.BlockStore) -> kvtier.Namespace:
    return store.namespace(model="m", block_bytes=BLOCK_BYTES, fingerprint="f")


def test_blocks_come_back_from_host_from_disk_and_after_a_restart(disk_folder: Path) -> None:
    layers = make_layers(1)
    want = rows_of(layers, list(range(100)))
    with open_store(disk_folder) as store:
        ns = namespace_of(store)
        paged = ns.attach(layers, PagedGeometry.from_tensors(layers))
        keys = ns.keys(range(16 * 100))
        assert paged.save(keys, range(100)).wait(60).num_accepted == 100
        for layer in layers:
            layer.zero_()
        assert paged.load(keys, range(20, 120)).wait(60).num_blocks == 100
        assert (rows_of(layers, list(range(20, 120))) == want).all()
        assert not rows_of(layers, list(range(20))).any()
        store.flush()
        store.clear(tiers=("host",))
        for layer in layers:
            layer.zero_()
        assert paged.load(keys, range(100)).wait(60).num_blocks == 100
        assert (rows_of(layers, list(range(100))) == want).all()
        assert store.stats()["tiers"]["disk"]["hits"] == 100
        assert store.stats()["tiers"]["host"]["mode"]["page_lock"].startswith("cuda:0 ")
    for layer in layers:
        layer.zero_()
    with open_store(disk_folder) as store:
        ns = namespace_of(store)
        paged = ns.attach(layers, PagedGeometry.from_tensors(layers))
        assert paged.load(keys, range(100)).wait(60).num_blocks == 100
        assert (rows_of(layers, list(range(100))) == want).all()


def test_a_save_takes_what_the_stream_writes_before_it(store: kvtier.BlockStore) -> None:
    layers = make_layers(2)
    ns = namespace_of(store)
    paged = ns.attach(layers, PagedGeometry.from_tensors(layers))
    keys = ns.keys(range(16 * 64))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)
        for number, layer in enumerate(layers):
            layer.fill_(1000 + number)
        job = paged.save(keys, range(64), stream=stream)
        assert not job.done()
        # The rows are written anew as soon as the stream may: after the save, not before.
        job.wait_on(stream, timeout_s=30)
        for layer in layers:
            layer.fill_(-1)
    assert job.wait(60).num_accepted == 64
    out = np.zeros((64, BLOCK_BYTES // 2), dtype=np.int16)
    assert ns.get(keys, out).num_blocks == 64
    want = np.repeat(
        np.arange(1000, 1000 + NUM_LAYERS, dtype=np.int16), BLOCK_BYTES // 2 // NUM_LAYERS
    )
    assert (out == want).all()


def test_a_load_waits_for_readers_and_is_waited_for(store: kvtier.BlockStore) -> None:
    layers = make_layers(3)
    ns = namespace_of(store)
    paged = ns.attach(layers, PagedGeometry.from_tensors(layers))
    keys = ns.keys(range(16 * 64))
    paged.save(keys, range(64)).wait(60)
    want = rows_of(layers, list(range(64)))
    old = rows_of(layers, list(range(64, 128)))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)
        read_before = [layer[64:].clone() for layer in layers]
        job = paged.load(keys, range(64, 128))
        job.wait_on(stream, timeout_s=30)
        read_after = [layer[64:].clone() for layer in layers]
    assert job.wait(60).num_blocks == 64
    stream.synchronize()
    assert (rows_of(read_before, list(range(64))) == old).all()
    assert (rows_of(read_after, list(range(64))) == want).all()


def test_rot_in_host_memory_names_the_rows(disk_folder: Path) -> None:
    layers = make_layers(4)
    with open_store(disk_folder) as store:
        ns = namespace_of(store)
        paged = ns.attach(layers, PagedGeometry.from_tensors(layers))
        keys = ns.keys(range(16 * 8))
        paged.save(keys, range(8)).wait(60)
        # The bytes of block 5 are in host memory once: find and damage them there.
        needle = rows_of(layers, [5]).tobytes()[:4096]
        assert damage_own_memory(needle) == 1
        loaded = paged.load(keys, range(100, 108), prefix=False).wait(60)
        assert loaded.outcomes[5] is kvtier.Outcome.CORRUPT
        assert loaded.undefined_block_ids.tolist() == [105]
        assert store.stats()["tiers"]["host"]["corrupt"] == 1
        assert ns.lookup(keys).num_blocks == 5


def damage_own_memory(needle: bytes) -> int:
    """Flips a bit of each copy of `needle` in large anonymous mappings of this process."""
    num_found = 0
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "r+b", buffering=0) as memory:
        for line in maps.read().splitlines():
            fields = line.split()
            begin, end = (int(it, 16) for it in fields[0].split("-"))
            if len(fields) > 5 or fields[1][:2] != "rw" or end - begin < 256 * MIB:
                continue
            for at in range(begin, end, 64 * MIB):
                try:
                    memory.seek(at)
                    piece = memory.read(min(64 * MIB, end - at))
                except OSError:
                    break
                place = piece.find(needle)
                if place >= 0:
                    memory.seek(at + place + 100)
                    memory.write(bytes([piece[place + 100] ^ 1]))
                    num_found += 1
    return num_found


def test_a_cancelled_save_ends_behind_a_busy_stream(store: kvtier.BlockStore) -> None:
    layers = make_layers(5)
    ns = namespace_of(store)
    paged = ns.attach(layers, PagedGeometry.from_tensors(layers))
    keys = ns.keys(range(16 * 32))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)
        job = paged.save(keys, range(32), stream=stream)
    assert job.cancel(wait=True, timeout_s=30)
    assert ns.lookup(keys).num_blocks in (0, 32)
    assert paged.save(keys, range(32)).wait(60).num_accepted == 32


def test_the_first_save_is_quick_whatever_the_size_of_the_host_tier(disk_folder: Path) -> None:
    layers = make_layers(6)
    with open_store(disk_folder, host_bytes=32768 * MIB) as store:
        ns = namespace_of(store)
        start_s = time.monotonic()
        paged = ns.attach(layers, PagedGeometry.from_tensors(layers))
        attached_s = time.monotonic() - start_s
        keys = ns.keys(range(16 * 32))
        paged.save(keys, range(32)).wait(60)
        first_save_s = time.monotonic() - start_s
        end_s = time.monotonic() + 60
        mode = store.stats()["tiers"]["host"]["mode"]
        while "pending" in mode["page_lock"] and time.monotonic() < end_s:
            mode = store.stats()["tiers"]["host"]["mode"]
        ready_s = time.monotonic() - start_s
        print(
            f"attached {attached_s:.2f} s, first save {first_save_s:.2f} s, locked {ready_s:.2f} s"
        )
        assert mode["page_lock"] == "cuda:0 ready"
        assert store.stats()["tiers"]["host"]["page_locked_bytes"] >= 32768 * MIB
        assert first_save_s < 1
        want = rows_of(layers, list(range(32)))
        assert paged.load(keys, range(64, 96)).wait(60).num_blocks == 32
        assert (rows_of(layers, list(range(64, 96))) == want).all()


def test_streams_and_tensors_of_elsewhere_are_refused(store: kvtier.BlockStore) -> None:
    layers = make_layers(7)
    ns = namespace_of(store)
    geometry = PagedGeometry.from_tensors(layers)
    paged = ns.attach(layers, geometry)
    keys = ns.keys(range(16))
    with pytest.raises(kvtier.UsageError, match="stream"):
        paged.save(keys, [0], stream=12345)
    pointers = [(layer.data_ptr(), layer.nbytes, "cuda:0") for layer in layers]
    host = [(pointers[0][0], 1 << 62, "cuda:0"), *pointers[1:]]
    with pytest.raises(kvtier.UsageError, match="tensor_index=0"):
        ns.attach(host, geometry)
    with pytest.raises((kvtier.UsageError, kvtier.UnsupportedError)):
        ns.attach([(pointer, num_bytes, "cuda:7") for pointer, num_bytes, _ in pointers], geometry)
    assert paged.save(keys, [0]).wait(60).num_accepted == 1
