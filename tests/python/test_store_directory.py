"""The store's folder: who may open it, what survives, what is left alone, what is said."""

import contextlib
import errno
import logging
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from payload import canary, payloads
from store_setup import BLOCK_BYTES, OpenStore, namespace_of

import kvtier
from kvtier import Outcome

ROOT = Path(__file__).resolve().parents[2]


def put_blocks(store: kvtier.BlockStore, num_blocks: int, **changes: object) -> None:
    """Puts a chain; what is declined because the tiers are busy is offered again."""
    ns = namespace_of(store, **changes)
    keys = ns.keys(range(4 * num_blocks))
    data = payloads(keys, 1, ns.block_bytes)
    num_stored = 0
    for _ in range(100):
        parent = keys[num_stored - 1] if num_stored else None
        num_stored += ns.put(keys[num_stored:], data[num_stored:], parent=parent).num_accepted
        if num_stored == num_blocks:
            return
        store.flush()
    pytest.fail("blocks stay declined")


def allocated_bytes(folder: Path) -> int:
    total = 0
    for file in folder.iterdir():
        # The store may remove a segment at any moment.
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_blocks * 512
    return total


def assert_blocks(store: kvtier.BlockStore, num_blocks: int, **changes: object) -> None:
    ns = namespace_of(store, **changes)
    keys = ns.keys(range(4 * num_blocks))
    out = canary(num_blocks, ns.block_bytes)
    assert ns.get(keys, out).num_blocks == num_blocks
    np.testing.assert_array_equal(out, payloads(keys, 1, ns.block_bytes))


def segment_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("segment-*.kvtier"))


def test_a_thousand_blocks_survive_a_restart_h1(open_store: OpenStore, disk_folder: Path) -> None:
    store = open_store(disk_folder / "store")
    put_blocks(store, 1000)
    store.flush()
    store.close()
    store = open_store(disk_folder / "store")
    assert store.stats()["recovered_blocks"] == 1000
    assert_blocks(store, 1000)


def test_what_is_declined_is_offered_again_and_fills_up_c8(
    open_store: OpenStore, disk_folder: Path
) -> None:
    store = open_store(disk_folder / "store", host_bytes="1MiB", disk_bytes="64MiB")
    ns = namespace_of(store)
    keys = ns.keys(range(4 * 400))
    data = payloads(keys, 1, BLOCK_BYTES)
    put = ns.put(keys, data)
    # Prefix first, and no hole inside of it.
    assert 0 < put.num_accepted < 400
    assert Outcome.DONE not in put.outcomes[put.num_accepted :]
    put_blocks(store, 400)
    assert ns.lookup(keys).num_blocks == 400
    out = canary(400, BLOCK_BYTES)
    assert ns.get(keys, out).num_blocks == 400
    np.testing.assert_array_equal(out, data)


def test_a_whole_chain_that_is_offered_again_fills_up_c8(
    open_store: OpenStore, disk_folder: Path
) -> None:
    store = open_store(disk_folder / "store", host_bytes="1MiB", disk_bytes="64MiB")
    ns = namespace_of(store)
    keys = ns.keys(range(4 * 400))
    data = payloads(keys, 1, BLOCK_BYTES)
    for _ in range(100):
        if ns.put(keys, data).num_accepted == 400:
            return
        store.flush()
    pytest.fail("blocks stay declined")


def test_a_salt_keeps_tenants_apart_after_a_restart_b3(
    open_store: OpenStore, disk_folder: Path
) -> None:
    store = open_store(disk_folder / "store")
    put_blocks(store, 4, salt="A")
    store.close()
    store = open_store(disk_folder / "store")
    for salt in ("B", None):
        ns = namespace_of(store, salt=salt)
        assert ns.lookup(ns.keys(range(16))).num_blocks == 0
    assert_blocks(store, 4, salt="A")


def test_modes_are_private_whatever_the_umask_k6(open_store: OpenStore, disk_folder: Path) -> None:
    old = os.umask(0)
    try:
        store = open_store(disk_folder / "store")
        put_blocks(store, 4)
        store.flush()
    finally:
        os.umask(old)
    assert stat.S_IMODE((disk_folder / "store").stat().st_mode) == 0o700
    files = list((disk_folder / "store").iterdir())
    assert len(files) >= 3
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_a_second_opening_names_the_holder_h8(open_store: OpenStore, disk_folder: Path) -> None:
    store = open_store(disk_folder / "store")
    with pytest.raises(kvtier.StoreBusyError, match=str(os.getpid())):
        open_store(disk_folder / "store")
    with pytest.raises(kvtier.StoreBusyError, match=str(os.getpid())):
        open_store(disk_folder / "store", lock_wait_s=0.05)
    store.close()
    open_store(disk_folder / "store")


def test_after_kill_9_of_the_holder_open_works_at_once_h8(
    open_store: OpenStore, disk_folder: Path
) -> None:
    code = (
        "import kvtier, sys, time\n"
        "store = kvtier.open(sys.argv[1], host_bytes='8MiB', disk_bytes='64MiB')\n"
        "print('open', flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, str(disk_folder / "store")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(kvtier.StoreBusyError, match=str(holder.pid)):
            open_store(disk_folder / "store")
        holder.kill()
        holder.wait()
    open_store(disk_folder / "store")


def test_on_exit_keep_and_delete_do_what_they_say_h7(
    open_store: OpenStore, disk_folder: Path
) -> None:
    for on_exit in ("keep", "delete"):
        store = open_store(disk_folder / on_exit, on_exit=on_exit)
        put_blocks(store, 4)
        store.flush()
        store.close()
    assert segment_files(disk_folder / "keep")
    assert not segment_files(disk_folder / "delete")
    assert_blocks(open_store(disk_folder / "keep"), 4)


def test_foreign_files_are_never_touched_h9(open_store: OpenStore, disk_folder: Path) -> None:
    folder = disk_folder / "store"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "segment-x.kvtier").write_text("mine too")
    (folder / "kvtier.yaml").write_text("host_bytes: 1GiB")
    (folder / "sub").mkdir()
    (folder / "sub" / "segment-00000001.kvtier").write_text("deeper")
    (folder / "link").symlink_to(folder / "notes.txt")
    store = open_store(folder, on_exit="delete")
    put_blocks(store, 4)
    store.flush()
    store.clear()
    store.close()
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "segment-x.kvtier").read_text() == "mine too"
    assert (folder / "kvtier.yaml").exists()
    assert (folder / "sub" / "segment-00000001.kvtier").read_text() == "deeper"
    assert (folder / "link").is_symlink()


def flip_every_block(folder: Path) -> None:
    """Flips a bit in the payload part of each segment, every 4,096 bytes."""
    for file in segment_files(folder):
        data = bytearray(file.read_bytes())
        # Behind header and table.
        for offset in range(64 << 10, len(data), 512):
            data[offset] ^= 1
        file.write_bytes(data)


def test_flipped_bytes_are_never_served_and_counted_c7_g1(
    open_store: OpenStore, disk_folder: Path
) -> None:
    folder = disk_folder / "store"
    store = open_store(folder, host_bytes=0)
    put_blocks(store, 64)
    store.close()
    flip_every_block(folder)
    store = open_store(folder, host_bytes=0)
    ns = namespace_of(store)
    keys = ns.keys(range(256))
    out = canary(64, BLOCK_BYTES)
    got = ns.get(keys, out)
    data = payloads(keys, 1, BLOCK_BYTES)
    np.testing.assert_array_equal(out[got.mask], data[got.mask])
    np.testing.assert_array_equal(out[~got.mask], canary(64, BLOCK_BYTES)[~got.mask])
    assert got.num_blocks < 64
    assert got.outcomes[got.num_blocks] in {Outcome.CORRUPT, Outcome.MISS}
    disk = store.stats()["tiers"]["disk"]  # type: ignore[index]
    assert disk["hits"] == got.num_blocks
    if Outcome.CORRUPT in got.outcomes:
        assert 1 <= disk["corrupt"] <= disk["load_failures"]
    assert ns.lookup(keys).num_blocks <= got.num_blocks


def test_block_five_of_eight_is_corrupt_a5(open_store: OpenStore, disk_folder: Path) -> None:
    folder = disk_folder / "store"
    store = open_store(folder, host_bytes=0)
    put_blocks(store, 8)
    store.close()
    ns_keys = None
    with kvtier.open(host_bytes="1MiB") as other:
        ns_keys = namespace_of(other).keys(range(32))
    wanted = payloads(ns_keys[5:6], 1, BLOCK_BYTES)[0].tobytes()
    (file,) = [it for it in segment_files(folder) if wanted in it.read_bytes()]
    data = bytearray(file.read_bytes())
    data[data.index(wanted) + 1234] ^= 0x10
    file.write_bytes(data)
    store = open_store(folder, host_bytes=0)
    ns = namespace_of(store)
    keys = ns.keys(range(32))
    assert ns.lookup(keys).num_blocks == 8
    out = canary(8, BLOCK_BYTES)
    got = ns.get(keys, out)
    assert got.num_blocks == 5
    assert got.outcomes == [Outcome.DONE] * 5 + [Outcome.CORRUPT] + [Outcome.MISS] * 2
    np.testing.assert_array_equal(out[:5], payloads(keys[:5], 1, BLOCK_BYTES))
    np.testing.assert_array_equal(out[5:], canary(3, BLOCK_BYTES))
    assert ns.lookup(keys, prefix=False).num_blocks == 5
    stats = store.stats()
    assert stats["tiers"]["disk"]["corrupt"] == 1  # type: ignore[index]
    assert stats["hit_blocks"] == 5


@pytest.mark.parametrize("kind", ["file", "below a file", "dangling link"])
def test_a_path_that_can_be_no_folder_is_refused_by_name_k4(disk_folder: Path, kind: str) -> None:
    blocker = disk_folder / "blocker"
    blocker.write_text("in the way")
    path = blocker
    if kind == "below a file":
        path = blocker / "store"
    if kind == "dangling link":
        path = disk_folder / "link"
        path.symlink_to(disk_folder / "nowhere" / "at all")
    with pytest.raises(kvtier.ConfigError, match=r"blocker|link|nowhere"):
        kvtier.open(path, host_bytes="8MiB", disk_bytes="64MiB")
    assert blocker.read_text() == "in the way"


def test_a_path_with_odd_characters_works(open_store: OpenStore, disk_folder: Path) -> None:
    for name in ("with space", "quote'\"", "ünïcödé", "new\nline", os.fsdecode(b"\xff\xfe"), "-x"):
        store = open_store(disk_folder / name)
        put_blocks(store, 2)
        store.close()
        assert_blocks(open_store(disk_folder / name), 2)


def test_a_folder_that_vanishes_is_a_miss_and_not_an_accident_h5(
    open_store: OpenStore, disk_folder: Path
) -> None:
    store = open_store(disk_folder / "store", host_bytes=0)
    put_blocks(store, 4)
    shutil.rmtree(disk_folder / "store")
    ns = namespace_of(store)
    keys = ns.keys(range(16))
    for _ in range(20):
        out = canary(4, BLOCK_BYTES)
        got = ns.get(keys, out)
        np.testing.assert_array_equal(out[got.mask], payloads(keys, 1, BLOCK_BYTES)[got.mask])
        ns.put(keys, payloads(keys, 1, BLOCK_BYTES))
        if (disk_folder / "store").exists():
            shutil.rmtree(disk_folder / "store", ignore_errors=True)


def test_flush_says_what_is_durable(open_store: OpenStore, disk_folder: Path) -> None:
    store = open_store(disk_folder / "store")
    put_blocks(store, 10)
    flushed = store.flush()
    assert flushed.durable_blocks == 10
    assert flushed.not_kept_blocks == 0
    with kvtier.open(host_bytes="4MiB") as memory:
        assert memory.flush() == kvtier.FlushResult(durable_blocks=0, not_kept_blocks=0)


def test_the_cap_holds_across_restarts_and_sizes_d2(
    open_store: OpenStore, disk_folder: Path
) -> None:
    folder = disk_folder / "store"
    cap_bytes = 16 << 20
    for generation, block_bytes in enumerate((10_000, 100_000, 4_096)):
        store = open_store(folder, disk_bytes=cap_bytes, host_bytes="4MiB")
        ns = namespace_of(store, block_bytes=block_bytes)
        for start in range(0, 40 << 20, 64 * block_bytes):
            keys = ns.keys(range(start, start + 4 * 64))
            ns.put(keys, payloads(keys, generation, block_bytes), timeout_s=10)
            assert allocated_bytes(folder) <= cap_bytes
        store.close()


def test_a_smaller_cap_is_met_by_open_and_said_d2(
    open_store: OpenStore, disk_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = disk_folder / "store"
    store = open_store(folder, disk_bytes="64MiB")
    put_blocks(store, 1000)
    store.flush()
    store.close()
    with caplog.at_level(logging.INFO, logger="kvtier"):
        store = open_store(folder, disk_bytes="8MiB")
    assert allocated_bytes(folder) <= 8 << 20
    assert any("block" in it.getMessage() and it.levelno >= 30 for it in caplog.records) or any(
        "8388608" in it.getMessage() for it in caplog.records
    )


def test_a_tiny_cap_is_refused_or_works(open_store: OpenStore, disk_folder: Path) -> None:
    for disk_bytes in (1, 4096, 100_000, 1 << 20, 2 << 20):
        folder = disk_folder / str(disk_bytes)
        try:
            store = open_store(folder, disk_bytes=disk_bytes)
            ns = namespace_of(store, block_bytes=512)
            keys = ns.keys(range(400))
            ns.put(keys, payloads(keys, 1, 512))
            store.flush()
            out = canary(100, 512)
            got = ns.get(keys, out)
            np.testing.assert_array_equal(out[got.mask], payloads(keys, 1, 512)[got.mask])
            store.close()
        except kvtier.ConfigError:
            # Said, and nothing half-done; how small works is the core's business.
            pass
        if folder.exists():
            assert allocated_bytes(folder) <= max(disk_bytes, 4096)


def test_errors_of_the_system_carry_their_number(disk_folder: Path) -> None:
    from kvtier import _core

    with pytest.raises(kvtier.TierIOError) as caught:
        _core.inspect_directory(str(disk_folder))
    assert caught.value.errno == errno.ENOENT
    assert str(disk_folder) in str(caught.value)
