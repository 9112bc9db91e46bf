"""Reports of the field on paged tensors: parts without bytes, results that nobody takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import kvtier
from kvtier import PagedGeometry

MIB = 1 << 20
NUM_ROWS = 32
LAYER_BYTES = (2500, 3500)
BLOCK_BYTES = sum(LAYER_BYTES)


def make_tensors(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, (NUM_ROWS, size), dtype=np.uint8) for size in LAYER_BYTES]


def rows_of(tensors: list[np.ndarray], rows: range) -> np.ndarray:
    """uint8[num_rows, BLOCK_BYTES], in host order."""
    return np.concatenate([tensor[rows.start : rows.stop] for tensor in tensors], axis=1)


def test_results_that_nobody_takes_do_not_stop_saves_g10(
    open_store: Callable[..., kvtier.BlockStore],
) -> None:
    store = open_store(None, host_bytes="16MiB")
    ns = store.namespace(model="m", block_bytes=BLOCK_BYTES, fingerprint="f")
    engine = make_tensors(6)
    paged = ns.attach(engine, PagedGeometry.from_tensors(engine))
    keys = ns.keys(range(16 * 1001))
    for index in range(1000):
        paged.save(keys[index : index + 1], [index % NUM_ROWS], chain=False)
    last = paged.save(keys[1000:], [0], chain=False)
    assert last.wait(20).num_accepted == 1
    deadline_s = time.monotonic() + 20
    while ns.lookup(keys, prefix=False).num_blocks < 1001 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert ns.lookup(keys, prefix=False).num_blocks == 1001


@pytest.mark.parametrize("part_bytes", [[0, 6000], [6000, 0], [0, 0, 1000, 0, 4097, 0, 903, 0]])
def test_parts_without_bytes_anywhere_come_back_from_both_tiers_j3(
    disk_folder: Path, part_bytes: list[int]
) -> None:
    engine = make_tensors(5)
    with kvtier.open(disk_folder / "s", host_bytes=8 * MIB, disk_bytes=64 * MIB) as store:
        ns = store.namespace(model="m", block_bytes=BLOCK_BYTES, fingerprint="f", parts=part_bytes)
        paged = ns.attach(engine, PagedGeometry.from_tensors(engine))
        keys = ns.keys(range(16 * 8))
        want = rows_of(engine, range(8))
        assert paged.save(keys, range(8)).wait(10).num_accepted == 8
        assert paged.load(keys, range(8, 16)).wait(10).num_blocks == 8
        np.testing.assert_array_equal(rows_of(engine, range(8, 16)), want)
        store.flush()
        store.clear(tiers=("host",))
        assert paged.load(keys, range(16, 24)).wait(10).num_blocks == 8
        np.testing.assert_array_equal(rows_of(engine, range(16, 24)), want)
        assert store.stats()["tiers"]["disk"]["hits"] == 8  # type: ignore[index]
