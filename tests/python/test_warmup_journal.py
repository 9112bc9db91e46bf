"""The journal of a warm-up: whose file it is, what it keeps and when it goes."""

import os
from pathlib import Path

import pytest

from kvtier.errors import ConfigError
from kvtier.warmup.journal import HEADER, Journal


def test_a_file_of_the_user_is_refused_and_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    for content in (b"my notes\n", b"\n", HEADER[:-1] + b" of mine\n", b"\xff\0" * 5000):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=r"notes\.txt is there and no journal of a warm-up"):
            Journal(str(file), purpose="a")
        assert file.read_bytes() == content


def test_the_prompt_file_is_refused_by_any_name(tmp_path: Path) -> None:
    file, link, hard_link = tmp_path / "p.txt", tmp_path / "link", tmp_path / "hard_link"
    file.write_bytes(HEADER)
    link.symlink_to(file)
    hard_link.hardlink_to(file)
    for path in (file, link, hard_link):
        with pytest.raises(ConfigError, match="would be the prompt file itself"):
            Journal(str(path), purpose="a", prompt_file=str(file))
    assert file.read_bytes() == HEADER


def test_what_is_no_file_or_cannot_be_read_is_refused_at_once(tmp_path: Path) -> None:
    pipe, loop = tmp_path / "pipe", tmp_path / "loop"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    for path in (tmp_path, pipe, loop):
        with pytest.raises(ConfigError, match=f"cannot read what is done: {path}: .*--journal ''"):
            Journal(str(path), purpose="a")


def test_an_empty_file_becomes_a_journal(tmp_path: Path) -> None:
    file = tmp_path / "j"
    file.touch()
    with Journal(str(file), purpose="a") as journal:
        journal.note("x")
    assert file.read_bytes().startswith(HEADER)
    assert Journal(str(file), purpose="a").done == {"x"}


def test_lines_of_another_purpose_and_torn_ones_do_not_count(tmp_path: Path) -> None:
    path = str(tmp_path / "j")
    with Journal(path, purpose="a") as journal:
        journal.note("x")
    with open(path, "a") as file:
        file.write('{"for": "' + "\0" * 100_000)
    with Journal(path, purpose="a") as journal:
        assert journal.done == {"x"}
        journal.note("y")
    assert Journal(path, purpose="a").done == {"x", "y"}
    assert Journal(path, purpose="b").done == frozenset()


def test_what_ends_takes_its_own_lines_only_and_the_last_one_the_file(tmp_path: Path) -> None:
    path, link = tmp_path / "j", tmp_path / "link"
    link.symlink_to(path)
    for purpose in "ab":
        with Journal(str(link), purpose=purpose) as journal:
            journal.note(f"of {purpose}")
            journal.note(f"more of {purpose}")
    with Journal(str(link), purpose="a") as journal:
        journal.finish()
    assert sorted(it.name for it in tmp_path.iterdir()) == ["j", "link"]
    assert path.read_bytes().startswith(HEADER)
    assert Journal(str(path), purpose="a").done == frozenset()
    assert Journal(str(link), purpose="b").done == {"of b", "more of b"}
    with Journal(str(link), purpose="b") as journal:
        journal.finish()
    assert not path.exists()


def test_a_rewrite_that_fails_says_so_and_leaves_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "j"
    for purpose in "ab":
        with Journal(str(path), purpose=purpose) as journal:
            journal.note("x")
    before = path.read_bytes()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(ConfigError, match=r"cannot note what is done: .*Permission denied"):
        Journal(str(path), purpose="a").finish()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with Journal(str(tmp_path / "j"), purpose="a") as journal:
        assert journal._file is not None
        with open("/dev/full", "wb") as full:
            os.dup2(full.fileno(), journal._file.fileno())
        with pytest.raises(ConfigError, match=r"cannot note what is done: .*No space left"):
            journal.note("x")
