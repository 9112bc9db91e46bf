"""The disk cap holds at every instant while many threads put, get, delete and clear."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from disk_usage import CapWatch, scan_bytes
from payload import canary, payloads
from store_setup import OpenStore, namespace_of

import kvtier

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
LOAD_S = 5.0
SAMPLE_S = 0.002
BLOCK_BYTES = (512, 4096, 60_000, 300_000)
NUM_KEYS = 64
WATCHER = """
import json, os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from disk_usage import CapWatch
watch = CapWatch(Path(sys.argv[2]), frozenset(sys.argv[3:]))
os.set_blocking(0, False)
print("watching", flush=True)
while True:
    watch.sample()
    try:
        if os.read(0, 1) == b"":
            break
    except BlockingIOError:
        time.sleep(%r)
print(json.dumps([watch.num_samples, watch.bytes_max]))
"""


class Watcher:
    """A process of its own samples the folder, undisturbed by this one's interpreter lock."""

    def __init__(self, folder: Path, foreign_names: tuple[str, ...] = ()) -> None:
        code = WATCHER % SAMPLE_S
        here = str(Path(__file__).parent)
        command = [sys.executable, "-c", code, here, str(folder), *foreign_names]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> "Watcher":
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "watching\n"
        return self

    def __exit__(self, *_: object) -> None:
        output, _ = self._process.communicate(timeout=30)
        self.num_samples, self.bytes_max = json.loads(output)


class Load:
    """Threads that use a store until they are told to stop; what they get is checked."""

    def __init__(self, store: kvtier.BlockStore) -> None:
        self._store = store
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(i,)) for i in range(4)]
        self.errors: list[BaseException] = []
        self.num_hits = 0

    def run(self, seconds: float) -> None:
        for thread in self._threads:
            thread.start()
        self._is_over.wait(seconds)
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _work(self, thread_index: int) -> None:
        try:
            random = np.random.default_rng(thread_index)
            while not self._is_over.is_set():
                self._one_call(random)
        except BaseException as error:
            self.errors.append(error)
            self._is_over.set()

    def _one_call(self, random: np.random.Generator) -> None:
        block_bytes = int(random.choice(BLOCK_BYTES))
        ns = namespace_of(self._store, block_bytes=block_bytes)
        first = int(random.integers(0, NUM_KEYS // 8)) * 10_000
        num_blocks = int(random.integers(1, NUM_KEYS // 4))
        keys = ns.keys(range(first, first + 4 * num_blocks))
        data = payloads(keys, 0, block_bytes)
        choice = random.random()
        if choice < 0.6:
            ns.put(keys, data, timeout_s=5)
        elif choice < 0.9:
            out = canary(num_blocks, block_bytes)
            got = ns.get(keys, out, timeout_s=5)
            np.testing.assert_array_equal(out[: got.num_blocks], data[: got.num_blocks])
            untouched = canary(num_blocks, block_bytes)
            np.testing.assert_array_equal(out[got.num_blocks :], untouched[got.num_blocks :])
            self.num_hits += got.num_blocks
        elif choice < 0.98:
            ns.delete(keys[num_blocks // 2 :])
        else:
            self._store.clear()


def write_foreign_files(folder: Path) -> dict[str, bytes]:
    """Three times as much as the cap: counting them would leave no room at all."""
    folder.mkdir(mode=0o700)
    contents = {"notes.txt": b"mine" * MIB, "segment-1": b"old" * 8 * MIB, "lock": b""}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return contents


@pytest.mark.parametrize("host_bytes", [0, 4 * MIB], ids=["disk", "both"])
def test_no_sample_under_load_is_above_the_cap(
    open_store: OpenStore, disk_folder: Path, host_bytes: int
) -> None:
    folder = disk_folder / "store"
    foreign = write_foreign_files(folder)
    cap_bytes = 8 * MIB
    with Watcher(folder, tuple(foreign)) as watcher:
        store = open_store(folder, host_bytes=host_bytes, disk_bytes=cap_bytes)
        load = Load(store)
        load.run(LOAD_S / 2)
        store.close()
    assert watcher.bytes_max <= cap_bytes
    assert watcher.bytes_max > cap_bytes // 2
    assert watcher.num_samples > 200
    assert load.num_hits > 0
    assert {name: (folder / name).read_bytes() for name in foreign} == foreign


def test_a_smaller_cap_holds_from_open_on(open_store: OpenStore, disk_folder: Path) -> None:
    folder = disk_folder / "store"
    for cap_bytes in (24 * MIB, 10 * MIB, 4 * MIB, 16 * MIB):
        store = open_store(folder, host_bytes=2 * MIB, disk_bytes=cap_bytes)
        assert sum(scan_bytes(folder).values()) <= cap_bytes
        with Watcher(folder) as watcher:
            for _ in range(10):  # On a busy machine half a second fills little.
                Load(store).run(0.5)
                if sum(scan_bytes(folder).values()) > cap_bytes // 2:
                    break
            store.close()
        assert watcher.bytes_max <= cap_bytes
        assert watcher.bytes_max > cap_bytes // 4


def test_the_watch_catches_a_file_above_the_cap(disk_folder: Path) -> None:
    watch = CapWatch(disk_folder, frozenset({"foreign"}))
    (disk_folder / "foreign").write_bytes(b"x" * MIB)
    watch.sample()
    assert watch.sample() == 0
    (disk_folder / "own").write_bytes(b"x" * MIB)
    watch.sample()
    assert watch.sample() >= MIB
    (disk_folder / "own").unlink()
    (disk_folder / "next").write_bytes(b"x" * MIB)
    # At no instant were both there.
    watch.sample()
    watch.sample()
    assert MIB <= watch.bytes_max < 2 * MIB


def test_the_load_catches_wrong_bytes(
    open_store: OpenStore, disk_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_get: Callable[..., kvtier.GetResult] = kvtier.Namespace.get

    def get_with_a_flipped_bit(self: object, keys: object, out: np.ndarray, **more: object):  # type: ignore[no-untyped-def]
        got = real_get(self, keys, out, **more)
        if got.num_blocks > 0:
            out[0, 0] ^= 1
        return got

    monkeypatch.setattr(kvtier.Namespace, "get", get_with_a_flipped_bit)
    load = Load(open_store(disk_folder / "store", disk_bytes=64 * MIB))
    start_s = time.monotonic()
    with pytest.raises(AssertionError):
        load.run(30)
    assert time.monotonic() - start_s < 30
