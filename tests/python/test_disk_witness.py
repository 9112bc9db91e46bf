"""Bytes on disk as others see them: read back through a ring, at the places of the documented
format; and how much of the files the page cache holds.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from payload import payloads
from store_setup import OpenStore, namespace_of

import kvtier
from kvtier.bench.segment_slots import read_segment_slots

BLOCK_BYTES = 64 * 1024
NUM_BLOCKS = 200


@pytest.fixture
def filled(open_store: OpenStore, disk_folder: Path) -> tuple[kvtier.BlockStore, np.ndarray]:
    store = open_store(disk_folder / "store", host_bytes=0)
    return store, fill(store)


def fill(store: kvtier.BlockStore, block_bytes: int = BLOCK_BYTES) -> np.ndarray:
    namespace = namespace_of(store, block_bytes=block_bytes)
    keys = namespace.keys(np.arange(4 * NUM_BLOCKS))
    assert namespace.put(keys, payloads(keys, 1, block_bytes)).num_accepted == NUM_BLOCKS
    store.flush()
    return keys


@pytest.mark.parametrize("block_bytes", [BLOCK_BYTES, 10_000, 700])
def test_a_ring_of_its_own_finds_every_block_at_its_slot(
    open_store: OpenStore, disk_folder: Path, block_bytes: int
) -> None:
    liburing = pytest.importorskip("kvtier.liburing")
    store = open_store(disk_folder / "store", host_bytes=0)
    keys = fill(store, block_bytes)
    found = {}
    try:
        ring = liburing.Ring(8)
    except OSError as error:
        pytest.skip(f"io_uring is refused here: {error}")
    with ring:
        for segment in read_segment_slots(disk_folder / "store"):
            assert set(segment.lengths_bytes.tolist()) == {block_bytes}
            fd = os.open(segment.path, os.O_RDONLY)
            out = np.zeros((len(segment.keys), block_bytes), dtype=np.uint8)
            ring.run_batch(
                fds=np.full(len(out), fd, dtype=np.int32),
                offsets_bytes=segment.offsets_bytes,
                buffers=list(out),
            )
            os.close(fd)
            found.update((key.tobytes(), out[i]) for i, key in enumerate(segment.keys))
    assert len(found) == NUM_BLOCKS
    for key, expected in zip(keys, payloads(keys, 1, block_bytes), strict=True):
        assert np.array_equal(found[key.tobytes()], expected)


def test_deleted_blocks_are_no_longer_in_a_table(
    filled: tuple[kvtier.BlockStore, np.ndarray], disk_folder: Path
) -> None:
    store, keys = filled
    namespace = namespace_of(store, block_bytes=BLOCK_BYTES)
    assert namespace.delete(keys[-10:]) == 10
    listed = [
        key.tobytes()
        for segment in read_segment_slots(disk_folder / "store")
        for key in segment.keys
    ]
    assert sorted(listed) == sorted(key.tobytes() for key in keys[:-10])


def test_a_file_of_another_format_is_refused(
    filled: tuple[kvtier.BlockStore, np.ndarray], disk_folder: Path
) -> None:
    path = next((disk_folder / "store").glob("segment-*.kvtier"))
    with open(path, "r+b") as file:
        file.seek(8)
        file.write((99).to_bytes(4, "little"))
    with pytest.raises(ValueError, match="no segment of format 1"):
        read_segment_slots(disk_folder / "store")


def cached_share(folder: Path) -> float:
    """The share of all segment files' pages that lie in the page cache, by mincore."""
    num_cached, num_pages = 0, 0
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    for path in folder.glob("segment-*.kvtier"):
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
            pages = (ctypes.c_ubyte * -(-len(mapping) // mmap.PAGESIZE))()
            start = ctypes.c_char.from_buffer(mapping)
            status = mincore(ctypes.byref(start), ctypes.c_size_t(len(mapping)), pages)
            del start
            assert status == 0, os.strerror(ctypes.get_errno())
            num_cached += sum(page & 1 for page in pages)
            num_pages += len(pages)
    return num_cached / num_pages


def test_direct_io_leaves_the_page_cache_alone(
    filled: tuple[kvtier.BlockStore, np.ndarray], disk_folder: Path
) -> None:
    """Reports E8, I7: direct I/O was configured, and yet the cache grew."""
    store, keys = filled
    mode = store.stats()["tiers"]["disk"]["mode"]
    if mode["direct"] != "direct":
        pytest.skip(f"no direct I/O here: {mode}")
    out = np.zeros((NUM_BLOCKS, BLOCK_BYTES), dtype=np.uint8)
    assert namespace_of(store, block_bytes=BLOCK_BYTES).get(keys, out).num_blocks == NUM_BLOCKS
    assert cached_share(disk_folder / "store") < 0.05


def test_buffered_io_gives_the_same_bytes_and_says_its_mode(
    open_store: OpenStore, disk_folder: Path
) -> None:
    """Report I7: both modes work, and the page cache is used when it was asked for."""
    store = open_store(disk_folder / "store", host_bytes=0, direct="off")
    assert store.stats()["tiers"]["disk"]["mode"]["direct"] != "direct"
    keys = fill(store)
    out = np.zeros((NUM_BLOCKS, BLOCK_BYTES), dtype=np.uint8)
    assert namespace_of(store, block_bytes=BLOCK_BYTES).get(keys, out).num_blocks == NUM_BLOCKS
    assert np.array_equal(out, payloads(keys, 1, BLOCK_BYTES))
    # The canary of the test above: mincore does see what is cached.
    assert cached_share(disk_folder / "store") > 0.05


def test_hits_in_memory_move_no_byte_of_the_disk(open_store: OpenStore, disk_folder: Path) -> None:
    """Report L2: bytes belong to the tier that they came from."""
    store = open_store(disk_folder / "store", host_bytes="64MiB")
    keys = fill(store)
    out = np.zeros((NUM_BLOCKS, BLOCK_BYTES), dtype=np.uint8)
    assert namespace_of(store, block_bytes=BLOCK_BYTES).get(keys, out).num_blocks == NUM_BLOCKS
    tiers = store.stats()["tiers"]
    assert tiers["disk"]["bytes_read"] == 0
    assert tiers["disk"]["hits"] == 0
    assert tiers["host"]["hits"] == NUM_BLOCKS
    assert tiers["host"]["bytes_read"] == NUM_BLOCKS * BLOCK_BYTES
