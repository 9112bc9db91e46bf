"""The raw probe: it moves what it says it moves, leaves nothing, and names the medium."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from kvtier.bench.raw_device import (
    ALIGNMENT_BYTES,
    DEPTH,
    RawRateLog,
    detect_medium,
    raw_probe,
)

SHARED_MEMORY = Path("/dev/shm")


def test_a_pass_moves_the_whole_file(tmp_path: Path) -> None:
    with raw_probe(tmp_path, file_bytes=4 << 20, block_bytes=100_000) as probe:
        assert probe.op_bytes == 102_400
        written = probe.write()
        read = probe.read()
        assert written.num_bytes == read.num_bytes == (4 << 20) // 102_400 * 102_400
        assert written.gb_per_s > 0
        assert read.gb_per_s > 0
        assert list(tmp_path.iterdir()) == []


def test_the_buffers_are_such_that_the_probe_is_a_roof(tmp_path: Path) -> None:
    """Small pages once made it 2.7 times too slow, and the store looked faster than the disk."""
    with raw_probe(tmp_path, file_bytes=32 << 20, block_bytes=1 << 20) as probe:
        addresses = [
            np.frombuffer(buffer, np.uint8).ctypes.data for buffer in probe._transfer.buffers
        ]
        maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    assert len(addresses) == DEPTH
    assert min(addresses) % (2 << 20) == 0
    assert all(address % ALIGNMENT_BYTES == 0 for address in addresses)
    for address in addresses:
        ranges = ((fields, [int(end, 16) for end in fields[0].split("-")]) for fields in maps)
        modes = [fields[1] for fields, (start, stop) in ranges if start <= address < stop]
        assert modes == ["rw-p"]


def test_a_deadline_ends_a_pass(tmp_path: Path) -> None:
    with raw_probe(tmp_path, file_bytes=8 << 20, block_bytes=4096) as probe:
        probe.write()
        assert probe.read(seconds_max=0.0).num_bytes < 8 << 20


def test_reading_before_writing_is_refused(tmp_path: Path) -> None:
    with (
        raw_probe(tmp_path, file_bytes=1 << 20, block_bytes=4096) as probe,
        pytest.raises(ValueError, match="nothing was written"),
    ):
        probe.read()


def test_a_failing_device_is_an_error_not_a_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with raw_probe(tmp_path, file_bytes=1 << 20, block_bytes=4096, is_ring_wanted=False) as probe:
        probe.write()
        monkeypatch.setattr(os, "preadv", lambda *_: 512)
        with pytest.raises(OSError, match="short transfer of 512 bytes"):
            probe.read()


def test_a_log_of_rates_has_one_of_each_per_measurement(tmp_path: Path) -> None:
    with RawRateLog.open(tmp_path, block_bytes=1 << 20) as rates:
        rates.measure()
        rates.measure()
    assert len(rates.reads) == len(rates.writes) == 2
    assert all(rate.gb_per_s > 0 for rate in (*rates.reads, *rates.writes))


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError),
        raw_probe(tmp_path / "missing", file_bytes=1 << 20, block_bytes=4096),
    ):
        pass


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="no tmpfs at /dev/shm")
def test_a_tmpfs_is_memory_however_fast() -> None:
    assert detect_medium(SHARED_MEMORY) == "memory"
    assert detect_medium(SHARED_MEMORY, read_gb_per_s=12.0) == "memory"


def test_a_measured_rate_overrules_a_kernel_that_says_rotating(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Rotating:
        medium = "hdd"

    monkeypatch.setattr("kvtier.bench.raw_device.find_file_system", lambda _: Rotating)
    assert detect_medium(tmp_path) == "hdd"
    assert detect_medium(tmp_path, read_gb_per_s=0.15) == "hdd"
    assert detect_medium(tmp_path, read_gb_per_s=1.2) == "ssd"
