"""What a store tells other processes: counters, holders and warnings, from a file in its folder."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from child_process import Child
from payload import payloads

import kvtier
from kvtier.live_state import LIVE_FILE_NAME, parse_live_text, read_live_state

BLOCK_BYTES = 4096
NUM_BLOCKS = 20
CHILD = """
import kvtier, signal, sys
store = kvtier.open(sys.argv[1], host_bytes="4MiB", disk_bytes="64MiB")
ns = store.namespace(model="m", block_bytes=4096, block_tokens=1, fingerprint="f")
keys = ns.keys(range(20))
assert ns.put(keys, bytes(20 * 4096)).num_accepted == 20
lease = ns.lease(keys[:5], owner="the child")
while not store.stats()["live_updates"]:
    store.flush()
before = store.stats()["live_updates"]
assert ns.get(keys, bytearray(20 * 4096)).num_blocks == 20
while store.stats()["live_updates"] == before:
    store.flush()
print("told", flush=True)
signal.pause()
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kvtier.BlockStore]:
    with kvtier.open(tmp_path / "store", host_bytes="4MiB", disk_bytes="64MiB") as opened:
        yield opened


def read(store_or_folder: kvtier.BlockStore | Path) -> kvtier.LiveState:
    folder = (
        store_or_folder
        if isinstance(store_or_folder, Path)
        else str(store_or_folder.config()["path"]["value"])
    )
    found = read_live_state(folder)
    assert found is not None
    return found


def wait_until_told(store: kvtier.BlockStore) -> kvtier.LiveState:
    """Until what holds now stands in the file; the test's timeout bounds it."""
    while True:
        now = store.stats()
        live = read_or_none(store)
        if live is not None and live.statistics["get_blocks"] == now["get_blocks"]:
            return live


def read_or_none(store: kvtier.BlockStore) -> kvtier.LiveState | None:
    return read_live_state(str(store.config()["path"]["value"]))


def test_another_process_sees_the_counters_of_a_running_store(tmp_path: Path) -> None:
    with Child(CHILD, tmp_path / "store") as child:
        assert child.read_line() == "told"
        live = read(tmp_path / "store")
        assert (live.state, live.pid) == (kvtier.live_state.RUNNING, child.pid)
        assert live.statistics["hit_blocks"] == NUM_BLOCKS
        tiers = live.statistics["tiers"]
        assert isinstance(tiers, dict)
        assert tiers["host"]["health"] == "ok"
        assert tiers["host"]["blocks"] == NUM_BLOCKS
        latency = live.statistics["latency"]
        assert isinstance(latency, dict)
        assert latency["get"]["calls"] == 1
        assert sum(latency["get"]["buckets"].values()) == 1
        (holder,) = live.holders
        assert (holder.kind, holder.owner, holder.num_blocks) == ("lease", "the child", 5)
        assert holder.num_bytes == 5 * BLOCK_BYTES
        assert 0 < (holder.expires_in_s or 0) <= 30
        os.kill(child.pid, signal.SIGKILL)
        child.process.wait()
        assert read(tmp_path / "store").state == kvtier.live_state.DIED


def test_a_holder_that_tells_nothing_for_long_is_called_silent(tmp_path: Path) -> None:
    with Child(CHILD, tmp_path / "store") as child:
        assert child.read_line() == "told"
        os.kill(child.pid, signal.SIGSTOP)
        file = tmp_path / "store" / LIVE_FILE_NAME
        os.utime(file, (0, file.stat().st_mtime - 100))
        assert read(tmp_path / "store").state == kvtier.live_state.SILENT
        os.kill(child.pid, signal.SIGCONT)


def test_statistics_from_outside_have_the_shape_of_stats(store: kvtier.BlockStore) -> None:
    def shape_of(value: object) -> object:
        return {k: shape_of(v) for k, v in value.items()} if isinstance(value, dict) else None

    ns = store.namespace(model="m", block_bytes=BLOCK_BYTES, fingerprint="f")
    keys = ns.keys(range(NUM_BLOCKS * 16))
    ns.put(keys, payloads(keys, 0, BLOCK_BYTES))
    ns.get(keys, np.empty((NUM_BLOCKS, BLOCK_BYTES), np.uint8))
    live = wait_until_told(store)
    assert shape_of(live.statistics) == shape_of(store.stats())


def test_a_closed_store_is_called_closed_and_keeps_its_last_counters(tmp_path: Path) -> None:
    with kvtier.open(tmp_path, host_bytes="4MiB", disk_bytes="64MiB") as store:
        ns = store.namespace(model="m", block_bytes=BLOCK_BYTES, fingerprint="f")
        assert ns.get(ns.keys(range(32)), bytearray(2 * BLOCK_BYTES)).num_blocks == 0
    live = read(tmp_path)
    assert live.state == kvtier.live_state.CLOSED
    assert live.statistics["miss_blocks"] == 2
    assert live.holders == ()


def test_warnings_of_the_store_are_told_the_newest_first(tmp_path: Path) -> None:
    with kvtier.open(tmp_path, host_bytes="8MiB", disk_bytes="4MiB"):
        pass  # The tier below is smaller than the one above.
    (event,) = read(tmp_path).events
    assert event.level == "warning"
    assert event.text.startswith("the disk tier is not larger than the host tier")
    assert event.age_s >= 0


def test_a_folder_without_a_store_tells_nothing(tmp_path: Path) -> None:
    assert read_live_state(tmp_path) is None
    with pytest.raises(kvtier.ConfigError, match="does not exist"):
        read_live_state(tmp_path / "none")


def test_a_live_file_of_another_version_is_refused(tmp_path: Path) -> None:
    with kvtier.open(tmp_path, host_bytes="4MiB", disk_bytes="64MiB"):
        pass
    file = tmp_path / LIVE_FILE_NAME
    file.write_bytes(file.read_bytes().replace(b"kvtier-live 1 ", b"kvtier-live 9 ", 1))
    with pytest.raises(kvtier.UnsupportedError, match="version=9"):
        read_live_state(tmp_path)


def test_a_damaged_live_file_is_refused(tmp_path: Path) -> None:
    with kvtier.open(tmp_path, host_bytes="4MiB", disk_bytes="64MiB"):
        pass
    file = tmp_path / LIVE_FILE_NAME
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    with pytest.raises(kvtier.TierIOError, match="live file"):
        read_live_state(tmp_path)


def test_a_holder_in_another_container_counts_as_running_until_it_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Child(CHILD, tmp_path / "store") as child:
        assert child.read_line() == "told"
        child.process.kill()
        child.process.wait()
    assert read(tmp_path / "store").state == kvtier.live_state.DIED
    monkeypatch.setattr("kvtier.live_state._find_pid_namespace", lambda: "pid:[1]")
    assert read(tmp_path / "store").state == kvtier.live_state.RUNNING
    file = tmp_path / "store" / LIVE_FILE_NAME
    os.utime(file, (0, file.stat().st_mtime - 100))
    assert read(tmp_path / "store").state == kvtier.live_state.DIED


def test_text_and_numbers_are_told_apart() -> None:
    text = 'a.b=1\na.c="x\\x22\\xc3\\xa9"\na.d=1.5e+09\ne="3"\n'
    assert parse_live_text(text) == {"a": {"b": 1, "c": 'x"é', "d": 1.5e9}, "e": "3"}


@pytest.mark.parametrize("text", ["a\n", "a=b\n", "a=1\na.b=2\n", 'a="x\n'])
def test_lines_that_nobody_writes_are_refused(text: str) -> None:
    with pytest.raises(kvtier.TierIOError, match="damaged"):
        parse_live_text(text)


def test_the_live_file_is_wiped_and_not_called_foreign(tmp_path: Path) -> None:
    from kvtier.cli.main import main

    with kvtier.open(tmp_path, host_bytes="4MiB", disk_bytes="64MiB"):
        pass
    assert (tmp_path / LIVE_FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert main(["wipe", str(tmp_path), "--yes"]) == 0
    assert not (tmp_path / LIVE_FILE_NAME).exists()


def test_holders_in_the_process_itself(store: kvtier.BlockStore) -> None:
    ns = store.namespace(model="m", block_bytes=BLOCK_BYTES, fingerprint="f")
    keys = ns.keys(range(64))
    ns.put(keys, payloads(keys, 0, BLOCK_BYTES))
    assert store.holders() == []
    with ns.lease(keys, owner="a" * 100), ns.lease(keys[:1]):
        first, second = store.holders()
        assert (first.owner, first.num_blocks, first.num_bytes) == ("a" * 64, 4, 4 * BLOCK_BYTES)
        assert (second.owner, second.num_blocks) == ("", 1)
        assert first.age_s >= second.age_s >= 0
        assert [it.holder_id for it in store.holders(1)] == [first.holder_id]
        assert store.holders(0) == []
    assert store.holders() == []
    with pytest.raises(kvtier.UsageError, match="num_max"):
        store.holders("x")  # type: ignore[arg-type]
