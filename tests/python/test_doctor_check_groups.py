"""Which checks there are: each isolated from the others, and each explained in the manual."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kvtier import _core
from kvtier.cli.doctor import check_groups
from kvtier.cli.doctor.check_groups import (
    list_gpu_checks,
    list_machine_checks,
    list_path_checks,
)
from kvtier.cli.doctor.finding import Level, run_check

ROOT = Path(__file__).resolve().parents[2]


def names_in_sources() -> set[str]:
    """Every name that a Finding is made with."""
    found = set()
    for file in (ROOT / "kvtier/cli/doctor").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                found |= {
                    it.value.value
                    for it in node.keywords
                    if it.arg == "name" and isinstance(it.value, ast.Constant)
                }
    return found


def names_in_manual() -> list[str]:
    """The first cells of the tables."""
    return re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/doctor.md").read_text(), re.MULTILINE)


def test_every_finding_stands_in_the_manual_once_and_no_other_does(disk_folder: Path) -> None:
    groups = (list_path_checks(str(disk_folder), 0), list_machine_checks(), list_gpu_checks())
    names = names_in_sources() | {name for group in groups for name, _ in group}
    assert len(names) > 20
    manual = names_in_manual()
    assert set(manual) == names
    assert len(manual) == len(names)


def test_each_check_of_this_machine_says_something() -> None:
    for name, check in list_machine_checks():
        found = list(run_check(name, check))
        assert [it.name for it in found] == [name]
        assert found[0].text
        assert found[0].level is Level.OK or found[0].remedy
        assert "could not be looked at" not in found[0].text


def test_one_check_that_fails_takes_no_other_along(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("no swap for you")

    monkeypatch.setattr(check_groups, "check_swap", refuse)
    findings = [it for name, check in list_machine_checks() for it in run_check(name, check)]
    failed = [it for it in findings if "could not be looked at" in it.text]
    assert [(it.name, it.level) for it in failed] == [("swap", Level.NOTE)]
    assert len(findings) == len(list(list_machine_checks()))


def test_a_folder_that_cannot_be_written_is_not_written_to(
    disk_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    names = [name for name, _ in list_path_checks(str(disk_folder), 0)]
    assert names == ["path", "file system"]
    (disk_folder / "file").write_text("x")
    names = [name for name, _ in list_path_checks(str(disk_folder / "file"), 0)]
    assert names == ["path"]


def test_a_probe_that_fails_leaves_the_checks_without_it(
    disk_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(_core, "probe_directory", refuse)
    findings = [
        it for name, check in list_path_checks(str(disk_folder), 0) for it in run_check(name, check)
    ]
    assert findings[0].level is Level.OK
    noted = {it.name for it in findings if it.level is Level.NOTE}
    assert noted >= {"space", "direct I/O", "fallocate"}
