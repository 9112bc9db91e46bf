"""Public reports about io_uring: refused by a filter, short of page-locked memory, switched off."""

import pytest
from child_process import run_python, run_well

import kvtier

# A filter that answers the three io_uring calls with an errno, as container profiles do.
REFUSE_RING = """
import ctypes, struct

def refuse_ring(os_errno):
    libc = ctypes.CDLL(None, use_errno=True)
    load_number = struct.pack("HBBI", 0x20, 0, 0, 0)
    first, last = 425, 427  # io_uring_setup, _enter, _register: equal on all architectures.
    is_above = struct.pack("HBBI", 0x25, 2, 0, last)
    is_inside = struct.pack("HBBI", 0x35, 0, 1, first)
    refuse = struct.pack("HBBI", 0x06, 0, 0, 0x00050000 | os_errno)
    allow = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
    code = b"".join((load_number, is_above, is_inside, refuse, allow))
    program = ctypes.create_string_buffer(code)
    header = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(program))
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, header) != 0:
        raise OSError(ctypes.get_errno(), "cannot set the filter")
"""

STORE = """
import numpy as np
import kvtier

def round_trip(path, **settings):
    data = np.arange(32 * 16384, dtype=np.uint32).view(np.uint8).reshape(32, 65536)
    with kvtier.open(path, host_bytes=0, disk_bytes="64MiB", **settings) as store:
        space = store.namespace(model="io", block_bytes=65536, block_tokens=1, fingerprint="x")
        keys = space.keys(np.arange(32))
        assert space.put(keys, data).num_accepted == 32
        store.flush()
        out = np.zeros_like(data)
        assert space.get(keys, out).num_blocks == 32
        assert (out == data).all()
        return store.stats()["tiers"]["disk"]["mode"]
"""


def _has_ring(tmp_path: object) -> bool:
    try:
        kvtier.open(str(tmp_path) + "/probe", host_bytes=0, disk_bytes="8MiB", io="uring").close()
    except kvtier.ConfigError:
        return False
    return True


@pytest.mark.parametrize("os_errno", [1, 38], ids=["EPERM", "ENOSYS"])
def test_e14_a_filter_that_refuses_the_ring_gives_threads_and_says_so(tmp_path, os_errno):
    done = run_python(
        REFUSE_RING + STORE + f"refuse_ring({os_errno})\n"
        "import sys\n"
        "mode = round_trip(sys.argv[1], io='auto')\n"
        "print(mode['io'], '|', mode['io_note'])\n",
        tmp_path / "store",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("threads |")
    assert f"errno={os_errno}" in done.stdout
    # Said once.
    assert done.stderr.count("disk I/O uses threads, not io_uring") == 1


def test_e14_a_ring_that_was_asked_for_and_is_refused_is_an_error_with_the_remedy(tmp_path):
    done = run_python(
        REFUSE_RING + STORE + "refuse_ring(1)\n"
        "import sys\n"
        "try:\n"
        "    round_trip(sys.argv[1], io='uring')\n"
        "except kvtier.ConfigError as error:\n"
        "    print(error)\n",
        tmp_path / "store",
    )
    assert done.returncode == 0, done.stderr
    assert "errno=1" in done.stdout
    assert "kernel.io_uring_disabled" in done.stdout
    assert "io=auto" in done.stdout


def test_e6_a_small_limit_on_page_locked_memory_costs_registration_only(tmp_path):
    if not _has_ring(tmp_path):
        pytest.skip("this machine refuses io_uring")
    # The limit holds only for a process without the capability to lock memory.
    code = (
        STORE + "import ctypes, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "header = (ctypes.c_uint32 * 2)(0x20080522, 0)\n"
        "sets = (ctypes.c_uint32 * 6)()\n"
        "assert libc.capget(header, sets) == 0\n"
        "for i in range(3):\n"
        "    sets[i] &= ~(1 << 14)\n"
        "assert libc.capset(header, sets) == 0\n"
        "mode = round_trip(sys.argv[1], io='auto')\n"
        "print(mode['io'], '|', mode.get('io_note', ''))\n"
    )
    done = run_python(code, tmp_path / "store")
    assert done.returncode == 0, done.stderr
    io, _, note = done.stdout.partition(" | ")
    # Old kernels count the ring itself too; then it is threads, with the same remedy.
    assert io in ("uring", "threads")
    assert "memlock_bytes=65536" in note
    assert "ulimit -l" in note


@pytest.mark.parametrize("io", ["auto", "uring", "threads"])
@pytest.mark.parametrize("direct", ["on", "off"])
def test_i7_each_io_mode_with_and_without_page_cache_moves_the_same_bytes(tmp_path, io, direct):
    if io == "uring" and not _has_ring(tmp_path):
        pytest.skip("this machine refuses io_uring")
    try:
        kvtier.open(tmp_path / "d", host_bytes=0, disk_bytes="8MiB", direct=direct).close()
    except kvtier.ConfigError as error:
        pytest.skip(f"no direct I/O here: {error}")
    answer = run_well(
        STORE + "import sys, logging\n"
        "logging.disable(logging.WARNING)\n"
        "mode = round_trip(sys.argv[1], io=sys.argv[2], direct=sys.argv[3])\n"
        "print(mode['io'], mode['direct'])\n",
        tmp_path / "store",
        io,
        direct,
    )
    used_io, used_direct = answer.split()
    assert used_direct == {"on": "direct", "off": "buffered"}[direct]
    assert io == "auto" or used_io == io


def test_a_forked_child_has_neither_ring_nor_thread_and_the_parent_goes_on(tmp_path):
    if not _has_ring(tmp_path):
        pytest.skip("this machine refuses io_uring")
    answer = run_well(
        "import os, sys, warnings\n"
        "import numpy as np, kvtier\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"
        "store = kvtier.open(sys.argv[1], host_bytes=0, disk_bytes='64MiB', io='uring')\n"
        "space = store.namespace(model='io', block_bytes=65536, block_tokens=1, fingerprint='x')\n"
        "keys = space.keys(np.arange(8))\n"
        "data = np.arange(8 * 16384, dtype=np.uint32).view(np.uint8).reshape(8, 65536)\n"
        "assert space.put(keys, data).num_accepted == 8\n"
        "def ring_fds():\n"
        "    links = [os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')\n"
        "             if os.path.islink(f'/proc/self/fd/{fd}')]\n"
        "    return sum('io_uring' in link for link in links)\n"
        "assert ring_fds() == 1\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    code = 0 if ring_fds() == 0 else 3\n"
        "    try:\n"
        "        space.lookup(keys)\n"
        "        code = 4\n"
        "    except kvtier.ClosedError:\n"
        "        pass\n"
        "    os._exit(code)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "out = np.zeros_like(data)\n"
        "assert space.get(keys, out).num_blocks == 8\n"
        "assert (out == data).all()\n"
        "store.close()\n"
        "print('good')\n",
        tmp_path / "store",
    )
    assert answer == "good\n"
