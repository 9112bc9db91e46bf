"""Forks in the middle of work: the child has no store, ends normally, and disturbs nobody."""

import subprocess
from pathlib import Path

import pytest
from child_process import ROOT, command_of, run_well

import kvtier

HEAD = """
import kvtier, multiprocessing, os, threading, warnings
import numpy as np
from payload import payloads, canary
# Newer interpreters warn of forks in processes with threads; here they are the point.
warnings.simplefilter("ignore", DeprecationWarning)
store = kvtier.open(sys.argv[1], host_bytes="4MiB", disk_bytes="64MiB", staging_bytes="4MiB")
ns = store.namespace(model="m", block_bytes=16384, block_tokens=1, fingerprint="f")
keys = ns.keys(range(300))
data = payloads(keys, 0, 16384)

def put_all():
    # More than fits into host: what is on disk makes room for the rest.
    for first in range(0, 300, 100):
        parent = keys[first - 1] if first else None
        part = ns.put(keys[first : first + 100], data[first : first + 100], parent=parent)
        if part.num_accepted < 100:
            break
        store.flush()

put_all()
assert ns.lookup(keys).num_blocks == 300
job = ns.put_async(keys, data)
job.wait()

def check_all():
    out = canary(300, 16384)
    got = ns.get(keys, out)
    np.testing.assert_array_equal(out[: got.num_blocks], data[: got.num_blocks])
    return got.num_blocks

def expect_closed():
    calls = [
        lambda: ns.lookup(keys), lambda: ns.lease(keys), lambda: ns.put(keys, data),
        lambda: ns.get(keys, canary(300, 16384)), lambda: ns.delete(keys), store.flush,
        store.clear, store.stats, store.config,
        lambda: store.namespace(model="n", block_bytes=1, fingerprint="f"),
        lambda: ns.put_async(keys, data), lambda: ns.get_async(keys, canary(300, 16384)),
        lambda: ns.prefetch(keys), store.poll, lambda: store.event_fd,
        job.done, job.wait, job.cancel, lambda: job.result,
    ]
    for call in calls:
        try:
            call()
        except kvtier.ClosedError:
            continue
        raise AssertionError(call)
    store.close()

class Work:
    def __init__(self):
        self.is_over = threading.Event()
        self.threads = [threading.Thread(target=self.run) for _ in range(3)]
        for thread in self.threads:
            thread.start()

    def run(self):
        while not self.is_over.is_set():
            put_all()
            check_all()
            ns.delete(keys[200:])

    def end(self):
        self.is_over.set()
        for thread in self.threads:
            thread.join()
"""
NORMAL_EXIT = """
work = Work()
for i in range(15):
    child = os.fork()
    if child == 0:
        expect_closed()
        with kvtier.open(sys.argv[1] + f"-{i}", host_bytes="4MiB", disk_bytes="16MiB",
                         staging_bytes="4MiB") as own:
            space = own.namespace(model="m", block_bytes=100, block_tokens=1, fingerprint="f")
            assert space.put(space.keys(range(3)), bytes(300)).num_accepted == 3
        # Through atexit handlers, destructors and all.
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
work.end()
put_all()
assert check_all() == 300
"""


def test_children_end_normally_while_threads_work(disk_folder: Path) -> None:
    run_well(HEAD + NORMAL_EXIT, disk_folder / "store")


LOCK = """
if os.fork() == 0:
    expect_closed()
    del ns, store
    os._exit(0)
assert os.wait()[1] == 0
print("ready", flush=True)
sys.stdin.readline()
assert check_all() == 300
"""


def test_the_lock_stays_with_the_parent(disk_folder: Path) -> None:
    folder = disk_folder / "store"
    with subprocess.Popen(
        command_of(HEAD + LOCK, folder),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        with pytest.raises(kvtier.StoreBusyError, match=str(parent.pid)):
            kvtier.open(folder, host_bytes="4MiB", disk_bytes="64MiB")
        parent.communicate("\n", timeout=60)
        assert parent.returncode == 0


POOL = """
def in_child(number):
    try:
        store.stats()
    except kvtier.ClosedError:
        return number * 2
    raise AssertionError("open in a child")

work = Work()
context = multiprocessing.get_context("fork")
with context.Pool(3) as pool:
    assert pool.map(in_child, range(50)) == [2 * i for i in range(50)]
    pool.close()
    pool.join()
for _ in range(5):
    process = context.Process(target=expect_closed)
    process.start()
    process.join(60)
    assert process.exitcode == 0
work.end()
assert check_all() > 0
"""


def test_multiprocessing_by_fork_works_while_threads_work(disk_folder: Path) -> None:
    run_well(HEAD + POOL, disk_folder / "store")


NESTED = """
child = os.fork()
if child == 0:
    grandchild = os.fork()
    if grandchild == 0:
        expect_closed()
        sys.exit(0)
    assert os.waitpid(grandchild, 0)[1] == 0
    expect_closed()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert check_all() == 300
store.close()
# A fork after close, and a new store in the same process.
if os.fork() == 0:
    sys.exit(0)
assert os.wait()[1] == 0
with kvtier.open(sys.argv[1], host_bytes="4MiB", disk_bytes="64MiB", staging_bytes="4MiB") as store:
    ns = store.namespace(model="m", block_bytes=16384, block_tokens=1, fingerprint="f")
    assert check_all() == 300
"""


def test_forks_of_forks_and_after_close(disk_folder: Path) -> None:
    run_well(HEAD + NESTED, disk_folder / "store")
