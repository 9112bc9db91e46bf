"""Reports about processes: how they start, end, and what they cost and leave."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from child_process import Child, run_well
from simulated_store import MIB, BlockId, SimulatedStore, run_of_blocks
from store_setup import OpenStore

import kvtier

OPEN = """
import kvtier, time
import numpy as np
from payload import payloads, canary
store = kvtier.open(sys.argv[1], host_bytes=sys.argv[2], disk_bytes="512MiB")
ns = store.namespace(model="m", block_bytes=1 << 20, block_tokens=1, fingerprint="f")
keys = ns.keys(range(100))
"""
H1_PUT = """
import kvtier
from payload import payloads
with kvtier.open(sys.argv[1], host_bytes="64MiB", disk_bytes="256MiB") as store:
    ns = store.namespace(model="m", block_bytes=50_000, fingerprint="f")
    keys = ns.keys(range(16_000))
    assert ns.put(keys, payloads(keys, 7, 50_000)).num_accepted == 1000
"""
H1_GET = """
import kvtier, numpy as np
from payload import payloads, canary
with kvtier.open(sys.argv[1], host_bytes="64MiB", disk_bytes="256MiB") as store:
    ns = store.namespace(model="m", block_bytes=50_000, fingerprint="f")
    keys = ns.keys(range(16_000))
    out = canary(1000, 50_000)
    assert ns.get(keys, out).num_blocks == 1000
    np.testing.assert_array_equal(out, payloads(keys, 7, 50_000))
    assert store.stats()["tiers"]["disk"]["hits"] == 1000
"""


def test_another_process_finds_a_thousand_blocks_h1(disk_folder: Path) -> None:
    run_well(H1_PUT, disk_folder / "store", PYTHONHASHSEED="1")
    run_well(H1_GET, disk_folder / "store", PYTHONHASHSEED="2")


# What a single user needs: open, get what is there, compute the rest, put, close.
EXAMPLE = """
import kvtier, numpy as np

def compute(token):
    return np.full(65536, token % 251, dtype=np.uint8)

prompt = list(range(1600))
with kvtier.open(sys.argv[1]) as store:
    ns = store.namespace(model="my-model", fingerprint="v1", block_bytes=65536)
    keys = ns.keys(prompt)
    kv = np.empty((len(keys), ns.block_bytes), dtype=np.uint8)
    num_hits = ns.get(keys, kv).num_blocks
    for i in range(num_hits, len(keys)):
        kv[i] = compute(prompt[i * ns.block_tokens])
    ns.put(keys[num_hits:], kv[num_hits:], parent=keys[num_hits - 1] if num_hits else None)
    assert all((kv[i] == compute(prompt[i * 16])).all() for i in range(len(keys)))
    print(num_hits)
"""


def test_a_short_example_hits_after_a_restart_h10(disk_folder: Path) -> None:
    assert len(EXAMPLE.strip().splitlines()) <= 40
    assert run_well(EXAMPLE, disk_folder / "store") == "0\n"
    assert run_well(EXAMPLE, disk_folder / "store") == "100\n"


@pytest.mark.parametrize("on_exit", ["keep", "delete"])
def test_a_process_that_just_ends_keeps_or_deletes_h7(disk_folder: Path, on_exit: str) -> None:
    code = """
import kvtier
store = kvtier.open(sys.argv[1], host_bytes="8MiB", disk_bytes="64MiB", on_exit=sys.argv[2])
ns = store.namespace(model="m", block_bytes=4096, fingerprint="f")
ns.put(ns.keys(range(160)), bytes(10 * 4096))
"""
    folder = disk_folder / "store"
    run_well(code, folder, on_exit)
    assert bool(list(folder.glob("segment-*"))) is (on_exit == "keep")


def test_an_open_that_waits_gets_the_folder_when_the_holder_dies_h8(
    open_store: OpenStore, disk_folder: Path
) -> None:
    code = "\nprint('open', flush=True)\ntime.sleep(600)\n"
    with Child(OPEN + code, disk_folder / "store", "8MiB") as holder:
        assert holder.read_line() == "open"
        start_s = time.monotonic()
        with pytest.raises(kvtier.StoreBusyError, match=str(holder.pid)):
            open_store(disk_folder / "store", lock_wait_s=0.2)
        assert 0.15 < time.monotonic() - start_s < 5
        # Released while the opening waits: after the kill nobody has to clean up.
        killer = threading.Timer(0.2, holder.process.kill)
        killer.start()
        start_s = time.monotonic()
        store = open_store(disk_folder / "store", lock_wait_s=30)
        assert time.monotonic() - start_s < 10
        killer.join()
        assert store.stats()["tiers"]["disk"]["health"] == "ok"  # type: ignore[index]


HOST_MEMORY = """
import kvtier, numpy as np
def memory_bytes():
    text = open("/proc/self/status").read()
    return sum(int(text.split(name)[1].split()[0]) << 10 for name in ("RssAnon:", "RssShmem:"))
block_bytes = 256 << 10
data = np.arange(block_bytes, dtype=np.uint32).view(np.uint8)[:block_bytes].copy()
with kvtier.open(host_bytes="1MiB") as small:
    ns = small.namespace(model="m", block_bytes=4096, fingerprint="f")
    ns.put(ns.keys(range(16)), bytes(4096))
before = memory_bytes()
store = kvtier.open(host_bytes="130MiB")
assert memory_bytes() - before <= 133 << 20
ns = store.namespace(model="m", block_bytes=block_bytes, block_tokens=1, fingerprint="f")
for first in range(0, 700):
    ns.put([ns.key(first.to_bytes(4, "little"))], data, chain=False)
host = store.stats()["tiers"]["host"]
assert host["evicted"] > 0 and host["bytes_used"] > 120 << 20, host
print(memory_bytes() - before)
"""


def test_130_mib_of_host_tier_take_133_at_most_f1() -> None:
    assert 120 * MIB < int(run_well(HOST_MEMORY)) <= 133 * MIB


def shared_memory_bytes() -> int:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    return int(text.split("Shmem:")[1].split()[0]) << 10


def test_ten_kills_leave_no_shared_memory_f6(disk_folder: Path) -> None:
    code = """
ns.put(keys[:60], np.zeros((60, 1 << 20), dtype=np.uint8))
print("put", flush=True)
time.sleep(600)
"""
    names = set(os.listdir("/dev/shm"))
    before_bytes = shared_memory_bytes()
    for _ in range(10):
        with Child(OPEN + code, disk_folder / "store", "64MiB") as child:
            assert child.read_line() == "put"
            child.process.kill()
            assert child.process.wait() == -signal.SIGKILL
    # One leak a kill would be 640 MiB; other programs come and go meanwhile, with some of theirs.
    assert shared_memory_bytes() - before_bytes < 320 * MIB
    left = set(os.listdir("/dev/shm")) - names
    assert not any("kvtier" in name for name in left)


QUEUED = """
data = payloads(keys, 0, 1 << 20)
assert ns.put(keys, data).num_accepted == 100
"""


def test_sigterm_with_a_hundred_queued_puts_ends_in_time_g8(disk_folder: Path) -> None:
    code = OPEN + QUEUED + "print('put', flush=True)\ntime.sleep(600)\n"
    with Child(code, disk_folder / "store", "128MiB") as child:
        assert child.read_line() == "put"
        start_s = time.monotonic()
        child.process.terminate()
        assert child.process.wait(timeout=30) == -signal.SIGTERM
        assert time.monotonic() - start_s <= 5
    assert int(run_well(OPEN + COUNT_RIGHT, disk_folder / "store", "128MiB")) <= 100


COUNT_RIGHT = """
out = canary(100, 1 << 20)
got = ns.get(keys, out)
np.testing.assert_array_equal(out[: got.num_blocks], payloads(keys, 0, 1 << 20)[: got.num_blocks])
print(got.num_blocks)
"""


def test_exit_without_close_with_a_hundred_queued_puts_ends_in_time_g8(disk_folder: Path) -> None:
    code = OPEN + QUEUED + "print(time.monotonic(), flush=True)\nsys.exit(0)\n"
    with Child(code, disk_folder / "store", "128MiB") as child:
        start_s = float(child.read_line())
        assert child.process.wait(timeout=30) == 0
        assert time.monotonic() - start_s <= 2
    assert int(run_well(OPEN + COUNT_RIGHT, disk_folder / "store", "128MiB")) <= 100


def test_close_under_a_stalled_disk_ends_at_its_deadline_g8() -> None:
    """On the simulated disk: a real one cannot be stalled without privileges or tricks."""
    sim = SimulatedStore(seed=1, host_bytes=8 * MIB, disk_bytes=64 * MIB)
    blocks = run_of_blocks(0, 0, 0, 20)
    sim.put(blocks, [it.payload(0) for it in blocks])
    sim.store.flush()
    sim.world.set_stalled(True)
    more = [BlockId(0, 1, depth) for depth in range(20)]
    sim.put(more, [it.payload(0) for it in more])
    result, _ = sim.get(blocks, is_prefix=True)
    assert result.num_blocks == 20
    with pytest.raises(kvtier.TimeoutError):
        sim.store.flush(0.5)
    start_s = time.monotonic()
    sim.store.close(2.0)
    assert time.monotonic() - start_s < 10
    assert any("closed before everything was on disk" in line for line in sim.log)
    with pytest.raises(kvtier.ClosedError):
        sim.store.stats()
    # What the disk still does may end later: nobody else gets the folder of this process.
    sim.world.set_stalled(False)
    with pytest.raises(kvtier.StoreBusyError):
        sim.open()
