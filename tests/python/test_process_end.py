"""How a process with an open store forks and ends: in time, without harm to what is stored."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from child_process import without_machine_warnings

ROOT = Path(__file__).resolve().parents[2]
HEAD = """
import kvtier, os, signal, sys, threading, time
store = kvtier.open(sys.argv[1], host_bytes="16MiB", disk_bytes="256MiB")
ns = store.namespace(model="m", block_bytes=65536, block_tokens=1, fingerprint="f")
keys = ns.keys(range(100))
data = b"".join(bytes([i]) * 65536 for i in range(100))
"""
CHECK = """
import kvtier, sys
with kvtier.open(sys.argv[1], host_bytes="16MiB", disk_bytes="256MiB") as store:
    ns = store.namespace(model="m", block_bytes=65536, block_tokens=1, fingerprint="f")
    keys = ns.keys(range(100))
    out = bytearray(100 * 65536)
    num_blocks = ns.get(keys, out).num_blocks
    for i in range(num_blocks):
        assert out[i * 65536 : (i + 1) * 65536] == bytes([i]) * 65536
    print(num_blocks)
"""


def run(code: str, folder: Path, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "store")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return without_machine_warnings(done)


def num_stored(folder: Path) -> int:
    done = run(CHECK, folder)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize(
    "ending", ["", "sys.exit(0)", "del store, ns", "raise SystemExit", "store.close()"]
)
def test_a_process_ends_in_time_without_close_g8(disk_folder: Path, ending: str) -> None:
    code = HEAD + f"ns.put(keys, data)\nprint(time.monotonic(), flush=True)\n{ending}\n"
    done = run(code, disk_folder)
    ended_s = time.monotonic()
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert ended_s - float(done.stdout) < 2.5
    assert num_stored(disk_folder) == 100


def test_an_uncaught_error_still_closes_g8(disk_folder: Path) -> None:
    done = run(HEAD + "ns.put(keys, data)\nraise RuntimeError('oops')\n", disk_folder)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("RuntimeError: oops")
    assert num_stored(disk_folder) == 100


def test_sigterm_ends_the_process_as_without_kvtier_g8(disk_folder: Path) -> None:
    code = HEAD + "ns.put(keys, data)\nprint('put', flush=True)\ntime.sleep(600)\n"
    command = [sys.executable, "-c", code, str(disk_folder / "store")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "put\n"
        start_s = time.monotonic()
        process.terminate()
        assert process.wait(timeout=30) == -signal.SIGTERM
        assert time.monotonic() - start_s < 5
    assert 0 <= num_stored(disk_folder) <= 100


def test_flushed_blocks_survive_kill_9(disk_folder: Path) -> None:
    code = HEAD + "ns.put(keys, data)\nstore.flush()\nos.kill(os.getpid(), signal.SIGKILL)\n"
    assert run(code, disk_folder).returncode == -signal.SIGKILL
    assert num_stored(disk_folder) == 100


def test_threads_that_put_at_exit_do_no_harm(disk_folder: Path) -> None:
    code = (
        HEAD
        + """
def work():
    try:
        while True:
            ns.put(keys, data)
            ns.get(keys, bytearray(len(data)))
            ns.delete(keys[50:])
    except kvtier.ClosedError:
        pass
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
"""
    )
    for _ in range(3):
        done = run(code, disk_folder)
        assert (done.returncode, done.stderr) == (0, "")
    assert num_stored(disk_folder) <= 100


FORK = """
ns.put(keys, data)
lease = ns.lease(keys)
child = os.fork()
if child == 0:
    calls = [
        lambda: ns.lookup(keys), lambda: ns.put(keys, data), lambda: ns.delete(keys),
        lambda: ns.get(keys, bytearray(len(data))), lambda: ns.lease(keys), lease.release,
        lambda: lease.expires_in_s, store.flush, store.clear, store.stats, store.config,
        lambda: store.namespace(model="n", block_bytes=1),
    ]
    for index, call in enumerate(calls):
        try:
            call()
        except kvtier.ClosedError:
            continue
        os._exit(10 + index)
    store.close()
    try:
        kvtier.open(sys.argv[1], host_bytes="16MiB", disk_bytes="256MiB")
    except kvtier.StoreBusyError as error:
        if str(os.getppid()) not in str(error):
            os._exit(3)
    else:
        os._exit(4)
    with kvtier.open(host_bytes="4MiB") as other:
        other.namespace(model="n", block_bytes=1, fingerprint="f")
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert ns.lookup(keys).num_blocks == 100
out = bytearray(len(data))
assert ns.get(keys, out).num_blocks == 100 and out == data
assert lease.release() is True
"""


def test_a_forked_child_is_closed_and_the_parent_goes_on(disk_folder: Path) -> None:
    done = run(HEAD + FORK, disk_folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert num_stored(disk_folder) == 100


def test_forks_under_load_do_not_hang(disk_folder: Path) -> None:
    code = (
        HEAD
        + """
is_over = False
def work():
    while not is_over:
        ns.put(keys, data)
        ns.get(keys, bytearray(len(data)))
        ns.delete(keys[50:])
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        try:
            ns.lookup(keys)
        except kvtier.ClosedError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
is_over = True
for thread in threads:
    thread.join()
"""
    )
    done = run(code, disk_folder)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_child_that_outlives_the_parent_does_not_hold_the_lock(disk_folder: Path) -> None:
    code = (
        HEAD
        + """
ns.put(keys, data)
store.flush()
if os.fork() == 0:
    os.close(1)
    os.close(2)
    time.sleep(5)
    os._exit(0)
os._exit(0)
"""
    )
    start_s = time.monotonic()
    assert run(code, disk_folder).returncode == 0
    assert num_stored(disk_folder) == 100
    assert time.monotonic() - start_s < 5


def test_a_multiprocessing_fork_works(disk_folder: Path) -> None:
    code = (
        HEAD
        + """
import multiprocessing
def child():
    try:
        store.stats()
    except kvtier.ClosedError:
        return
    raise SystemExit(1)
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join(20)
assert process.exitcode == 0, process.exitcode
assert ns.put(keys, data).num_accepted == 100
"""
    )
    done = run(code, disk_folder)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_gil_is_free_while_a_call_waits(disk_folder: Path) -> None:
    code = (
        HEAD
        + """
ns.put(keys, data)
ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        time.sleep(0.001)
threading.Thread(target=tick, daemon=True).start()
out = bytearray(len(data))
end_s = time.monotonic() + 0.5
while time.monotonic() < end_s:
    ns.get(keys, out)
assert ticks > 20, ticks
"""
    )
    done = run(code, disk_folder)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_signal_handler_is_installed(disk_folder: Path) -> None:
    code = (
        "import signal\nbefore = [signal.getsignal(it) for it in signal.valid_signals()]\n"
        + HEAD
        + "assert [signal.getsignal(it) for it in signal.valid_signals()] == before\n"
        "text = open('/proc/self/status').read()\n"
        "caught = int(text.split('SigCgt:')[1].split()[0], 16)\n"
        "assert not caught & ((1 << signal.SIGTERM - 1) | (1 << signal.SIGSEGV - 1)), hex(caught)\n"
    )
    done = run(code, disk_folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.getpid() > 0
