"""A device that takes operations and ends none, while the kernel's caches go on answering."""

from pathlib import Path

import pytest
from child_process import run_python

CODE = """
import os, time
import kvtier
import numpy as np
from kvtier.bench.simulated_disk import PaperDisk
from kvtier.block_store import open_store

path, io = sys.argv[1:]
sizes = {"host_bytes": "1MiB", "disk_bytes": "64MiB", "io": io}

def space_of(store):
    return store.namespace(model="m", block_bytes=65536, block_tokens=1, fingerprint="f")

with kvtier.open(path, **{**sizes, "host_bytes": 0}) as store:
    ns = space_of(store)
    keys = ns.keys(range(64))
    assert ns.put(keys, np.ones((64, 65536), np.uint8)).num_accepted == 64
    store.flush()

# An hour for each read; the look at the directory, each second, ends at once.
hanging = PaperDisk(read_bytes_per_s=10**9, write_bytes_per_s=10**9, latency_s=3600.0)
store = open_store({"path": path, "stall_s": 1.5, **sizes}, None,
                   simulated_disk=hanging.core_option())
ns = space_of(store)
hot = ns.keys([1000])
assert ns.put(hot, np.full((1, 65536), 7, np.uint8)).num_accepted == 1
out = np.zeros((1, 65536), np.uint8)
assert store.stats()["tiers"]["disk"]["health"] == "ok"
started_s = time.monotonic()
got = ns.get(keys[:1], out, timeout_s=600)
assert got.num_blocks == 0 and not out.any()
elapsed_s = time.monotonic() - started_s
assert 1.0 < elapsed_s < 60, elapsed_s
assert store.stats()["tiers"]["disk"]["health"] == "stalled"
assert ns.lookup(keys).num_blocks == 0
assert ns.get(hot, out).num_blocks == 1 and (out == 7).all()
store.close(timeout_s=0.5)
print("closed", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("io", ["auto", "threads"])
def test_a_device_that_ends_nothing_is_called_stalled_though_its_folder_answers(
    disk_folder: Path, io: str
) -> None:
    done = run_python(CODE, disk_folder / "store", io)
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr
    assert "disk tier is stalled" in done.stderr
