"""Checks of inference engines: which are installed, whether they are served, and double offloading.

Reads package metadata and /proc only: no engine is imported. Stateless.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kvtier.adapters.vllm.compatibility import PROVED_VERSIONS
from kvtier.cli.doctor.finding import Finding, Level
from kvtier.cli.doctor.kernel_files import list_process_folders

_PACKAGES: Final = ("vllm", "lmcache", "sglang", "torch")
# Options of vLLM with which it moves KV out of the GPU by itself.
_OFFLOADING_OPTIONS: Final = ("--swap-space", "--kv-offloading-size", "--kv_offloading_size")
_ROOT: Final = Path("/")


def find_version(package: str) -> str:
    """Returns the installed version; "" when there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def check_engines(version_of: Callable[[str], str] = find_version) -> Finding:
    """The engines beside kvtier, in this Python."""
    versions = {package: version_of(package) for package in _PACKAGES}
    listed = [f"{package} {version}" for package, version in versions.items() if version]
    text = ", ".join(listed) or "none in this Python (vllm, lmcache, sglang, torch)"
    proved = " and ".join(PROVED_VERSIONS)
    release = _release(versions["vllm"])
    if not versions["vllm"] or ".".join(map(str, release)) in PROVED_VERSIONS:
        return Finding(name="engines", text=text)
    is_too_old = release < _release(PROVED_VERSIONS[0])
    return Finding(
        name="engines",
        level=Level.WARN if is_too_old else Level.NOTE,
        text=f"{text}; the adapter was proved on vLLM {proved}",
        why="vLLM may refuse the connector at its start" if is_too_old else "it may work as well",
        remedy=f"pip install 'vllm=={PROVED_VERSIONS[-1]}.*'",
    )


def check_double_offloading(
    version_of: Callable[[str], str] = find_version, root: Path = _ROOT
) -> Finding:
    """Whether something else moves KV out of the GPU as well: running engines, or LMCache."""
    for folder in list_process_folders(root / "proc"):
        option = _find_offloading(_read_words(folder / "cmdline"))
        if option:
            return Finding(
                name="offloading",
                level=Level.WARN,
                text=f"process {folder.name} runs vLLM with {option}",
                why="beside kvtier KV is moved twice, and each slows the other down",
                remedy=f"leave {option.split()[0]} out where kvtier is the connector",
            )
    if version_of("lmcache"):
        return Finding(
            name="offloading",
            level=Level.NOTE,
            text="lmcache is installed beside kvtier",
            why="with both as connectors KV is moved twice",
            remedy="name one of them in --kv-transfer-config",
        )
    return Finding(name="offloading", text="nothing else seen that moves KV")


def _find_offloading(words: list[str]) -> str:
    """Returns the option and its value, of the command line of a vLLM; else ""."""
    if not any("vllm" in word for word in words[:4]):
        return ""
    for option in _OFFLOADING_OPTIONS:
        for index, word in enumerate(words):
            name, separator, value = word.partition("=")
            if name == option:
                value = value if separator else "".join(words[index + 1 : index + 2])
                if _is_above_zero(value):
                    return f"{option} {value}"
    return ""


def _is_above_zero(value: str) -> bool:
    try:
        return float(value) > 0
    except ValueError:
        return False


def _read_words(file: Path) -> list[str]:
    try:
        return file.read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return []


def _release(version: str) -> tuple[int, ...]:
    """Returns the first two numbers of a version, 0 for what is none."""
    parts = version.split(".")[:2]
    return tuple(int(part) if part.isdecimal() else 0 for part in parts)
