"""What measured rates of a disk mean, and that measuring leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvtier.cli.doctor import rate_checks
from kvtier.cli.doctor.finding import Level
from kvtier.cli.doctor.rate_checks import BLOCK_BYTES, BlockRate, check_rates, judge_rates
from kvtier.units import KIB, MIB


def rates_of(*reads_gb_per_s: float) -> list[BlockRate]:
    return [
        BlockRate(block_bytes=size, read_gb_per_s=rate, write_gb_per_s=rate / 2)
        for size, rate in zip(BLOCK_BYTES, reads_gb_per_s, strict=False)
    ]


def test_a_rate_is_told_by_block_size_and_in_seconds_for_a_prompt() -> None:
    found = judge_rates(rates_of(1.0, 2.0, 2.35), is_direct=True)
    assert found.level is Level.OK
    assert "reads 1.00 / 2.00 / 2.35, writes 0.50 / 1.00 / 1.18 GB/s" in found.text
    assert "64 KiB, 1 MiB, 4 MiB" in found.text
    assert found.why == "a 4,096-token prompt of Qwen2.5-7B (235 MB) loads in 0.10 s"


def test_a_slow_disk_is_named_with_what_it_costs() -> None:
    found = judge_rates(rates_of(0.1, 0.2, 0.235), is_direct=True)
    assert found.level is Level.WARN
    assert "loads in 1.00 s" in found.why
    assert "NVMe" in found.remedy
    assert judge_rates(rates_of(0.0), is_direct=True).level is Level.WARN


def test_a_rate_through_the_page_cache_is_not_called_the_devices() -> None:
    found = judge_rates(rates_of(9.0), is_direct=False)
    assert found.level is Level.NOTE
    assert "the rate of memory" in found.why
    assert "prompt" not in found.why


def test_measuring_moves_bytes_and_leaves_no_file(disk_folder: Path) -> None:
    found = check_rates(str(disk_folder), MIB, can_be_direct=True)
    assert "64 KiB, 1 MiB" in found.text
    assert "4 MiB" not in found.text
    assert list(disk_folder.iterdir()) == []


def test_ctrl_c_while_measuring_leaves_no_file(
    disk_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvtier.bench.raw_device import RawProbe

    seen: list[list[str]] = []

    def interrupt(_: RawProbe, **__: object) -> None:
        seen.append(os.listdir(disk_folder))
        raise KeyboardInterrupt

    monkeypatch.setattr(RawProbe, "read", interrupt)
    with pytest.raises(KeyboardInterrupt):
        check_rates(str(disk_folder), MIB, can_be_direct=True)
    assert seen == [[]]
    assert list(disk_folder.iterdir()) == []


def test_without_a_ring_threads_measure_and_the_rate_is_still_measured(
    disk_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtier.bench.raw_transfer._open_ring", lambda _: None)
    assert "64 KiB" in check_rates(str(disk_folder), 64 * KIB, can_be_direct=True).text


def test_nothing_is_measured_when_nothing_may_be_written(
    disk_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_checks, "measure_rates", lambda *_: pytest.fail("measured"))
    assert check_rates(str(disk_folder), 0, can_be_direct=True).level is Level.OK


def test_little_free_space_bounds_what_is_written(
    disk_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def measure(_: str, file_bytes: int) -> tuple[list[BlockRate], bool]:
        asked.append(file_bytes)
        return [], True

    monkeypatch.setattr(rate_checks, "measure_rates", measure)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=4 * 100, f_frsize=4096))
    found = check_rates(str(disk_folder), 256 * MIB, can_be_direct=True)
    assert asked == [100 * 4096]
    assert found.level is Level.NOTE
    assert "too little space" in found.text
