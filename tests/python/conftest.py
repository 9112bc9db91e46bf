"""Fixtures of all Python tests: real folders on a real file system, and open stores that close."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kvtier

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's KVTIER_* variables must not change what a test sees."""
    for name in os.environ:
        if name.startswith("KVTIER_"):
            monkeypatch.delenv(name)


@pytest.fixture
def disk_folder() -> Iterator[Path]:
    """A folder on a real disk: tmpfs takes unaligned direct writes. Removed afterwards."""
    parent = ROOT / "build"
    parent.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="test-", dir=parent))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def open_store(disk_folder: Path) -> Iterator[Callable[..., "kvtier.BlockStore"]]:
    """kvtier.open with small sizes; every store is closed before its folder is removed."""
    stores: list[kvtier.BlockStore] = []

    def open_one(path: object = None, **settings: object) -> "kvtier.BlockStore":
        settings.setdefault("host_bytes", "8MiB")
        if path is not None:
            settings.setdefault("disk_bytes", "64MiB")
            settings.setdefault("staging_bytes", "4MiB")
        stores.append(kvtier.open(path, **settings))  # type: ignore[arg-type]
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture(params=["auto", "threads"])
def io(request: pytest.FixtureRequest) -> str:
    """Each I/O engine (E14): "auto" is the ring where the machine permits it."""
    return str(request.param)


@pytest.fixture(params=["host", "disk", "disk-threads", "both"])
def store(
    request: pytest.FixtureRequest,
    open_store: Callable[..., "kvtier.BlockStore"],
    disk_folder: Path,
) -> "kvtier.BlockStore":
    """One store with each arrangement of tiers, and the disk with each I/O engine."""
    if request.param == "host":
        return open_store()
    if request.param == "disk":
        return open_store(disk_folder / "store", host_bytes=0)
    if request.param == "disk-threads":
        return open_store(disk_folder / "store", host_bytes=0, io="threads")
    return open_store(disk_folder / "store")
