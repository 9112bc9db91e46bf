"""Processes with different hash seeds, ranks and salts share a folder, one after the other."""

from pathlib import Path

from child_process import run_well

PROCESS = """
import kvtier
import numpy as np
from payload import payloads, canary
rank, salt = int(sys.argv[2]), sys.argv[3] or None
with kvtier.open(sys.argv[1], host_bytes="4MiB", disk_bytes="64MiB", staging_bytes="4MiB") as store:
    def space(rank, salt, **more):
        return store.namespace(model="m", block_bytes=10_000, tp_size=2, rank=rank, salt=salt,
                               fingerprint="f", **more)
    ns = space(rank, salt)
    keys = ns.keys(range(320))
    generation = rank * 10 + len(salt or "")
    if sys.argv[4] == "put":
        assert ns.lookup(keys).num_blocks == 0
        assert ns.put(keys, payloads(keys, generation, 10_000)).num_accepted == 20
    out = canary(20, 10_000)
    assert ns.get(keys, out).num_blocks == 20
    np.testing.assert_array_equal(out, payloads(keys, generation, 10_000))
    # The same tokens, and even the same raw keys, in every other identity: nothing.
    for other in (space(rank, (salt or "") + "x"), space(rank, salt, adapter="a"),
                  space(rank, salt, group=1), space(rank, salt, replicated=True)):
        assert other.id != ns.id
        assert other.lookup(other.keys(range(320)), prefix=False).num_blocks == 0
        assert other.lookup(keys, prefix=False).num_blocks == 0
    print(hash("seed"), ns.id, keys.tobytes().hex())
"""
IDENTITIES = ((0, ""), (1, ""), (0, "A"), (1, "BB"))


def test_each_process_reads_back_its_own_a8_b3(disk_folder: Path) -> None:
    folder = disk_folder / "store"
    put = {}
    for seed, (rank, salt) in enumerate(IDENTITIES):
        text = run_well(PROCESS, folder, rank, salt, "put", PYTHONHASHSEED=str(seed))
        put[rank, salt] = text.split()
    assert len({namespace_id for _, namespace_id, _ in put.values()}) == len(IDENTITIES)
    assert len({keys for _, _, keys in put.values()}) == len(IDENTITIES)
    for seed, (rank, salt) in enumerate(IDENTITIES):
        other_seed = str(1000 + seed)
        text = run_well(PROCESS, folder, rank, salt, "get", PYTHONHASHSEED=other_seed, LC_ALL="C")
        python_hash, *identity = text.split()
        # The interpreter's own hashes differ, what is stored does not depend on them.
        assert python_hash != put[rank, salt][0]
        assert identity == put[rank, salt][1:]


REPLICATED = """
import kvtier
with kvtier.open(sys.argv[1], host_bytes=0, disk_bytes="64MiB", staging_bytes="4MiB") as store:
    ns = store.namespace(model="m", block_bytes=10_000, tp_size=8, rank=int(sys.argv[2]),
                         replicated=True, fingerprint="f")
    put = ns.put(ns.keys(range(160)), bytes(10 * 10_000))
    assert put.num_accepted == 10
    print(store.stats()["tiers"]["disk"]["inserted"])
"""


def test_replicated_blocks_are_stored_once_whatever_the_rank(disk_folder: Path) -> None:
    inserted = [
        int(run_well(REPLICATED, disk_folder / "store", rank, PYTHONHASHSEED=str(rank + 1)))
        for rank in range(3)
    ]
    assert inserted == [10, 0, 0]
