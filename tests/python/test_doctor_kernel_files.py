"""Small files of the kernel: read, or counted as empty."""

from pathlib import Path

import pytest

from kvtier.cli.doctor.kernel_files import list_process_folders, read_choice, read_text


@pytest.mark.parametrize(
    ("text", "choice"),
    [("always [madvise] never\n", "madvise"), ("[never]", "never"), ("never", ""), ("[", "")],
)
def test_the_word_in_brackets_is_the_choice(tmp_path: Path, text: str, choice: str) -> None:
    (tmp_path / "enabled").write_text(text)
    assert read_choice(tmp_path / "enabled") == choice


def test_what_cannot_be_read_is_empty(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe x\n")
    assert read_text(tmp_path / "bytes").endswith(" x")
    assert read_text(tmp_path / "missing") == ""
    assert read_text(tmp_path) == ""
    assert list(list_process_folders(tmp_path / "missing")) == []


def test_only_numbers_are_processes(tmp_path: Path) -> None:
    for name in ("7", "self", "sys"):
        (tmp_path / name).mkdir()
    assert list(list_process_folders(tmp_path)) == [tmp_path / "7"]
