"""Where GPU and processor share one memory: blocks go straight from the engine to the disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from paged_engine import MIB, make_tensors, open_namespace, rows_of

from kvtier import PagedGeometry


def test_one_memory_needs_no_host_tier_and_counts_its_budget_once_f10(disk_folder: Path) -> None:
    engine = make_tensors(11)
    store, ns = open_namespace(
        disk_folder / "store", host_bytes="auto", unified="on", staging_bytes=MIB
    )
    keys = ns.keys(range(16 * 31))
    block_ids = list(range(1, 32))
    with store:
        paged = ns.attach(engine, PagedGeometry.from_tensors(engine))
        saved = paged.save(keys, block_ids).wait(10)
        assert saved.num_accepted == 31
        want = rows_of(engine, block_ids)
        for tensor in engine:
            tensor[:] = 0
        assert paged.load(keys, block_ids).wait(10).num_blocks == 31
        np.testing.assert_array_equal(rows_of(engine, block_ids), want)
        stats = store.stats()
        assert stats["tiers"]["host"]["bytes_capacity"] == 0
        assert stats["tiers"]["host"]["health"] == "off"
        assert stats["staging_bytes"] == MIB
        assert store.config()["host_bytes"]["value"] == 0
        assert "unified=on" in str(store.config()["host_bytes"]["note"])
    # Again in a new process's place: all of it came from disk.
    store, ns = open_namespace(disk_folder / "store", host_bytes="auto", unified="on")
    with store:
        paged = ns.attach(engine, PagedGeometry.from_tensors(engine))
        assert paged.load(keys, block_ids[::-1]).wait(10).num_blocks == 31
        np.testing.assert_array_equal(rows_of(engine, block_ids[::-1]), want)
