"""Finding a store's folder: the one that is named, else the only one that is open."""

import os
from pathlib import Path

import pytest

import kvtier
from kvtier.store_folder import choose_folder, find_holder, list_held_folders


def make_proc(root: Path, *folders: Path) -> Path:
    """A /proc in which each folder's lock is held by a process."""
    locks = ""
    for pid, folder in enumerate(folders, start=10):
        lock = folder / "kvtier.lock"
        lock.write_text(f"pid {pid}")
        (root / str(pid) / "fd").mkdir(parents=True)
        os.symlink(lock, root / str(pid) / "fd" / "5")
        os.symlink("/dev/null", root / str(pid) / "fd" / "6")
        locks += f"1: FLOCK ADVISORY WRITE {pid} 08:01:{lock.stat().st_ino} 0 EOF\n"
    (root / "self").mkdir()
    (root / "locks").write_text(locks)
    return root


def test_open_stores_are_found_and_old_locks_are_not(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("b", "a", "gone")]
    for folder in folders:
        folder.mkdir()
    proc = make_proc(tmp_path / "proc", *folders)
    assert list_held_folders(proc) == [str(tmp_path / name) for name in ("a", "b", "gone")]
    assert find_holder(str(folders[0]), proc) == "pid 10"
    (proc / "locks").write_text("")
    assert list_held_folders(proc) == []


def test_a_named_folder_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, other = tmp_path / "named", tmp_path / "other"
    named.mkdir()
    other.mkdir()
    monkeypatch.setenv("KVTIER_PATH", str(other))
    assert choose_folder(str(named)) == str(named)
    assert choose_folder(None) == str(other)


@pytest.mark.parametrize("held", [[], ["/a", "/b"]])
def test_none_or_several_open_stores_are_no_choice(
    monkeypatch: pytest.MonkeyPatch, held: list[str]
) -> None:
    monkeypatch.delenv("KVTIER_PATH", raising=False)
    monkeypatch.setattr("kvtier.store_folder.list_held_folders", lambda: held)
    with pytest.raises(kvtier.ConfigError, match="which store") as caught:
        choose_folder(None)
    assert all(it in str(caught.value) for it in held)


def test_the_only_open_store_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVTIER_PATH", raising=False)
    monkeypatch.setattr("kvtier.store_folder.list_held_folders", lambda: ["/a"])
    assert choose_folder(None) == "/a"
