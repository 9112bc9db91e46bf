"""tools/wheel_libraries.py: what the extensions need, and that more would be seen."""

import shutil
import zipfile
from pathlib import Path

import pytest
import wheel_libraries
from wheel_libraries import find_glibc_version, find_needed, find_strangers, main

from kvtier import _core

CORE = Path(_core.__file__)

pytestmark = pytest.mark.skipif(shutil.which("readelf") is None, reason="there is no readelf")


def test_the_extensions_need_libc_only_and_neither_liburing_nor_cuda() -> None:
    extensions = [CORE, *sorted((CORE.parent / "liburing").glob("_ring*.so"))]
    needed = {name for it in extensions for name in find_needed(it)}
    assert any(name.startswith("libc.") for name in needed)
    assert find_strangers(sorted(needed)) == []
    assert find_glibc_version(CORE) >= (2, 17)


def test_a_library_that_machines_may_lack_is_seen() -> None:
    names = ["libc.so.6", "liburing.so.2", "libcuda.so.1", "libstdc++.so.6", "libgcc_s.so.1"]
    assert find_strangers(names) == names[1:]
    assert find_strangers(["libm.so.6", "ld-linux-aarch64.so.1", "libpthread.so.0"]) == []


def test_a_wheel_is_looked_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = tmp_path / "kvtier-0-cp3-cp3-linux.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.write(CORE, f"kvtier/{CORE.name}")
    assert main([str(wheel)]) == 0
    assert f"{CORE.name}: libc only" in capsys.readouterr().out


def test_a_wheel_without_extensions_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tmp_path / "kvtier-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("kvtier/__init__.py", "")
    assert main([str(wheel)]) == 1
    assert "no extension was found" in capsys.readouterr().out


def test_an_extension_that_needs_more_fails_and_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = ["libc.so.6", "libcuda.so.1"]
    monkeypatch.setattr(wheel_libraries, "find_needed", lambda extension: needed)
    assert main([str(CORE)]) == 1
    assert "needs libcuda.so.1" in capsys.readouterr().out
