"""Many threads on one store, the data they may hand over, and that the interpreter goes on."""

import array
import statistics
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from payload import U8, canary, payloads
from store_setup import BLOCK_BYTES, OpenStore, namespace_of

import kvtier

NUM_THREADS = 32
PREFIX_BLOCKS = 8
SUFFIX_BLOCKS = 6


def test_32_threads_with_overlapping_prefixes_a13(open_store: OpenStore, disk_folder: Path) -> None:
    """Host and disk are too small for all, so blocks are loaded and evicted all the time."""
    store = open_store(disk_folder / "store", host_bytes="2MiB", disk_bytes="6MiB")
    ns = namespace_of(store)
    barrier = threading.Barrier(NUM_THREADS)
    errors: list[BaseException] = []
    num_hits = [0] * NUM_THREADS

    def work(index: int) -> None:
        try:
            barrier.wait()
            for turn in range(6):
                # Four prefixes, shared by eight threads each; then the thread's own blocks.
                tokens = [*range(PREFIX_BLOCKS * 4), *(1000 + index * 7 + turn for _ in range(24))]
                tokens[0] = index % 4
                keys = ns.keys(tokens)
                wanted = payloads(keys, 0, BLOCK_BYTES)
                out = canary(len(keys), BLOCK_BYTES)
                got = ns.get(keys, out, request=f"{index}-{turn}")
                wanted_out = wanted.copy()
                wanted_out[got.num_blocks :] = canary(1, BLOCK_BYTES)[0]
                np.testing.assert_array_equal(out, wanted_out)
                num_hits[index] += got.num_blocks
                put = ns.put(keys, wanted, request=f"{index}-{turn}")
                assert set(put.outcomes) <= {kvtier.Outcome.DONE, kvtier.Outcome.DECLINED}
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert sum(num_hits) > NUM_THREADS * PREFIX_BLOCKS
    stats = store.stats()
    tiers = stats["tiers"]
    assert isinstance(tiers, dict)
    assert stats["hit_blocks"] == sum(num_hits) == tiers["host"]["hits"] + tiers["disk"]["hits"]
    assert tiers["disk"]["corrupt"] == 0


class FakeTensor:
    """What kvtier uses of a torch.Tensor in CPU memory; torch itself is not needed."""

    def __init__(self, blocks: U8) -> None:
        self._array = blocks
        self.device = types.SimpleNamespace(type="cpu")
        self.layout = "torch.strided"

    def data_ptr(self) -> int:
        return int(self._array.ctypes.data)

    def numel(self) -> int:
        return self._array.size

    def element_size(self) -> int:
        return self._array.itemsize

    def is_contiguous(self) -> bool:
        return bool(self._array.flags.c_contiguous)

    def is_conj(self) -> bool:
        return False

    def is_neg(self) -> bool:
        return False


FORMS: dict[str, Callable[[U8], object]] = {
    "uint8 array": lambda it: it,
    "flat float16 array": lambda it: it.reshape(-1).view(np.float16),
    "bytes": lambda it: it.tobytes(),
    "bytearray": lambda it: bytearray(it.tobytes()),
    "memoryview": lambda it: memoryview(it.tobytes()),
    "array.array": lambda it: array.array("d", it.tobytes()),
    "list of arrays": list,
    "list of bytes": lambda it: [block.tobytes() for block in it],
    "tuple of different kinds": lambda it: (
        it[0].tobytes(),
        bytearray(it[1].tobytes()),
        it[2].view(np.int32),
        *it[3:],
    ),
    "list of slices": lambda it: list(np.concatenate([it, it], axis=1)[:, :BLOCK_BYTES]),
    "tensor": FakeTensor,
    "list of tensors": lambda it: [FakeTensor(block) for block in it],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data_is_stored_exactly(
    open_store: OpenStore, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = types.ModuleType("torch")
    torch.Tensor = FakeTensor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    ns = namespace_of(open_store())
    keys = ns.keys(range(24))
    wanted = payloads(keys, 3, BLOCK_BYTES)
    assert ns.put(keys, FORMS[form](wanted.copy())).num_accepted == 6
    out = canary(6, BLOCK_BYTES)
    assert ns.get(keys, out).num_blocks == 6
    np.testing.assert_array_equal(out, wanted)
    into_tensor = canary(6, BLOCK_BYTES)
    assert ns.get(keys, FakeTensor(into_tensor)).num_blocks == 6
    np.testing.assert_array_equal(into_tensor, wanted)


@pytest.mark.parametrize("call", ["put", "get", "flush", "delete"])
def test_the_interpreter_goes_on_during_a_call_g11(
    open_store: OpenStore, disk_folder: Path, call: str
) -> None:
    """Threads are never switched here unless one gives up the lock, so any tick within a call
    proves that the call gave it up."""
    store = open_store(disk_folder / "store", host_bytes=0, disk_bytes="256MiB")
    ns = namespace_of(store, block_bytes=1 << 20, block_tokens=1)
    keys = ns.keys(range(32))
    data = payloads(keys, 0, 1 << 20)
    out = np.empty_like(data)
    num_ticks = 0
    is_over = threading.Event()

    def tick() -> None:
        nonlocal num_ticks
        while not is_over.is_set():
            num_ticks += 1
            # Gives the lock to whoever waits for it.
            is_over.wait(0.0001)

    calls: dict[str, Callable[[], object]] = {
        "put": lambda: ns.put(keys, data),
        "get": lambda: ns.get(keys, out),
        "flush": store.flush,
        "delete": lambda: ns.delete(keys[:1]),
    }
    old_s = sys.getswitchinterval()
    ticker = threading.Thread(target=tick)
    ticks_in_call = 0
    sys.setswitchinterval(100)
    ticker.start()
    try:
        for _ in range(20):
            if call != "put":
                ns.put(keys, data)
            before = num_ticks
            calls[call]()
            ticks_in_call += num_ticks - before
            if call == "put":
                ns.delete(keys[:1])
    finally:
        sys.setswitchinterval(old_s)
        is_over.set()
        ticker.join()
    assert ticks_in_call > 0


def run_and_wait_s() -> tuple[float, float]:
    """Seconds that the calling thread ran, and that it was ready but had no CPU."""
    text = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text("ascii")
    run_ns, wait_ns, _ = map(int, text.split())
    return run_ns / 1e9, wait_ns / 1e9


def test_a_counting_thread_loses_hardly_anything_to_a_get_g11(
    open_store: OpenStore, disk_folder: Path, io: str
) -> None:
    """Of its time neither running nor waiting for a CPU, which leaves waiting for the lock of the
    interpreter. The median of many gets: other threads of the test run hold it now and then."""
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("the kernel keeps no time of threads")
    store = open_store(disk_folder / "store", host_bytes=0, disk_bytes="256MiB", io=io)
    ns = namespace_of(store, block_bytes=1 << 20, block_tokens=1)
    keys = ns.keys(range(64))
    assert ns.put(keys, payloads(keys, 0, 1 << 20)).num_accepted == 64
    store.flush()
    out = np.empty((64, 1 << 20), dtype=np.uint8)
    is_over = threading.Event()
    lost_shares: list[float] = []

    def count() -> None:
        num_counted = 0
        while not is_over.is_set():
            start_s, (run_s, wait_s) = time.perf_counter(), run_and_wait_s()
            while time.perf_counter() - start_s < 0.05:
                num_counted += 1
            end_run_s, end_wait_s = run_and_wait_s()
            taken_s = time.perf_counter() - start_s
            lost_shares.append(1 - (end_run_s - run_s + end_wait_s - wait_s) / taken_s)

    counter = threading.Thread(target=count)
    counter.start()
    try:
        for _ in range(16):  # 1 GiB.
            assert ns.get(keys, out).num_blocks == 64
        while len(lost_shares) < 3:
            assert ns.get(keys, out).num_blocks == 64
    finally:
        is_over.set()
        counter.join()
    assert statistics.median(lost_shares) < 0.05
