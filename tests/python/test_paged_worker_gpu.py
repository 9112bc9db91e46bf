"""Worker processes with tensors of a GPU over one store's arena: right bytes on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker_process import (
    EMPTY,
    MIB,
    NUM_RANKS,
    carry_out,
    make_tensors,
    open_namespace,
    rows_of,
    start_workers,
)

import kvtier

pytestmark = pytest.mark.gpu
torch: Any = pytest.importorskip("torch")


def test_ranks_on_a_gpu_save_and_load_over_an_arena_that_each_of_them_page_locks(
    disk_folder: Path,
) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    block_ids, others = [3, 1, 4, 15, 9, 2, 6, 5], [20, 21, 22, 23, 24, 25, 26, 27]
    want = [rows_of(make_tensors(100 + rank), block_ids) for rank in range(NUM_RANKS)]
    store, ns = open_namespace(disk_folder / "store", host_bytes=64 * MIB)
    keys = ns.keys(range(16 * 8))
    workers = start_workers(store, ns, "cuda:0")
    saved = carry_out(store, ns.plan_save(keys, num_ranks=NUM_RANKS), workers, block_ids)
    assert isinstance(saved, kvtier.PutResult)
    assert saved.num_accepted == 8
    out = np.zeros((8, ns.block_bytes), dtype=np.uint8)
    assert ns.get(keys, out).num_blocks == 8
    np.testing.assert_array_equal(out, np.concatenate(want, axis=1))
    store.flush()
    for tiers in ((), ("host",)):
        store.clear(tiers=tiers)
        for worker in workers:
            worker.ask("clear")
        loaded = carry_out(store, ns.plan_load(keys, num_ranks=NUM_RANKS), workers, others)
        assert isinstance(loaded, kvtier.PlannedLoadResult)
        assert loaded.num_blocks == 8
        for rank, worker in enumerate(workers):
            np.testing.assert_array_equal(worker.rows(others), want[rank])
            assert (worker.rows(block_ids) == EMPTY).all()
    for worker in workers:
        stats = worker.ask("stats")
        assert isinstance(stats, dict)
        assert stats["page_lock"] == "ready"
        assert stats["page_locked_bytes"] >= 64 * MIB
        worker.stop()
    store.close()
