"""What the doctor says of engines beside kvtier; none is imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvtier.adapters.vllm.compatibility import PROVED_VERSIONS
from kvtier.cli.doctor.engine_checks import check_double_offloading, check_engines, find_version
from kvtier.cli.doctor.finding import Level

ROOT = Path(__file__).resolve().parents[2]


def versions(**installed: str) -> Callable[[str], str]:
    return lambda package: installed.get(package, "")


@pytest.mark.parametrize(
    ("vllm", "level"),
    [
        ("", Level.OK),
        *((f"{version}.1", Level.OK) for version in PROVED_VERSIONS),
        (f"{PROVED_VERSIONS[-1]}.0rc1+cu129", Level.OK),
        ("0.9.2", Level.WARN),
        ("0.99.0", Level.NOTE),
        ("dev", Level.WARN),
    ],
)
def test_a_version_of_vllm_that_was_not_proved_is_named(vllm: str, level: Level) -> None:
    found = check_engines(versions(vllm=vllm, torch="2.9.0"))
    assert found.level is level
    assert "torch 2.9.0" in found.text
    assert vllm in found.text
    assert bool(found.remedy) is (level is not Level.OK)


def test_a_python_without_engines_is_no_fault() -> None:
    found = check_engines(versions())
    assert found.level is Level.OK
    assert found.text.startswith("none in this Python")


def test_versions_come_from_metadata() -> None:
    assert find_version("pytest") == pytest.__version__
    assert find_version("kvtier-of-nobody") == ""


def test_looking_at_engines_imports_none() -> None:
    code = (
        "import sys; from kvtier.cli.doctor import engine_checks as e; e.check_engines(); "
        "print({'torch', 'vllm', 'lmcache', 'sglang'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def run_process(root: Path, number: int, *words: str) -> None:
    folder = root / f"proc/{number}"
    folder.mkdir(parents=True)
    (folder / "cmdline").write_bytes("\0".join([*words, ""]).encode())


@pytest.mark.parametrize(
    "words",
    [("--swap-space", "4"), ("--swap-space=4",), ("--kv-offloading-size", "32")],
)
def test_a_running_engine_that_offloads_by_itself_is_named_a15(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    run_process(tmp_path, 1, "/sbin/init")
    run_process(tmp_path, 41, "python3", "/usr/bin/vllm", "serve", "m", *words)
    found = check_double_offloading(versions(), tmp_path)
    assert found.level is Level.WARN
    assert "process 41" in found.text
    assert found.remedy.startswith("leave --")


@pytest.mark.parametrize(
    "words",
    [
        ("vllm", "serve", "m"),
        ("vllm", "serve", "m", "--swap-space", "0"),
        ("vllm", "serve", "m", "--swap-space"),
        ("other", "run", "m", "--swap-space", "4"),
    ],
)
def test_an_engine_that_does_not_is_left_in_peace(tmp_path: Path, words: tuple[str, ...]) -> None:
    run_process(tmp_path, 41, *words)
    assert check_double_offloading(versions(), tmp_path).level is Level.OK


def test_another_cache_that_is_installed_is_a_note_a15(tmp_path: Path) -> None:
    found = check_double_offloading(versions(lmcache="0.4.0"), tmp_path)
    assert found.level is Level.NOTE
    assert "--kv-transfer-config" in found.remedy
