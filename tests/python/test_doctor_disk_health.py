"""What a disk's own report means, over reports of the shape that smartctl prints."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from kvtier.cli.doctor.disk_health import DiskHealth, check_health, judge_health, parse_health
from kvtier.cli.doctor.finding import Level


def nvme(**changes: Any) -> dict[str, Any]:
    log = {
        "critical_warning": 0,
        "temperature": 41,
        "available_spare": 100,
        "available_spare_threshold": 10,
        "percentage_used": 3,
        "data_units_written": 81_234_567,
        "media_errors": 0,
        **changes,
    }
    return {
        "json_format_version": [1, 0],
        "smartctl": {"version": [7, 3], "exit_status": 0},
        "device": {"name": "/dev/nvme0n1", "type": "nvme", "protocol": "NVMe"},
        "smart_status": {"passed": not log["critical_warning"], "nvme": {"value": 0}},
        "nvme_smart_health_information_log": log,
        "temperature": {"current": 41},
    }


def sata(attributes: dict[int, tuple[int, int]], *, passed: bool = True) -> dict[str, Any]:
    """attributes: value and raw value by id."""
    table = [
        {"id": number, "name": f"A{number}", "value": value, "raw": {"value": raw}}
        for number, (value, raw) in attributes.items()
    ]
    return {
        "smartctl": {"version": [7, 3], "exit_status": 0},
        "device": {"name": "/dev/sda", "type": "sat", "protocol": "ATA"},
        "smart_status": {"passed": passed},
        "ata_smart_attributes": {"revision": 16, "table": table},
        "temperature": {"current": 33},
    }


def test_a_healthy_nvme_disk_is_told_with_its_wear() -> None:
    health = parse_health(nvme())
    assert health == DiskHealth(
        is_passed=True, used_percent=3, num_errors=0, temperature_c=41, warnings=()
    )
    found = judge_health("nvme0n1", health)
    assert found.level is Level.OK
    assert found.text == "nvme0n1: passed, 3 % of rated writes used, 0 media errors, 41 °C"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"critical_warning": 4}, "FAILED"),
        ({"critical_warning": 4}, "critical warning 0x04"),
        ({"media_errors": 7}, "7 media errors"),
        ({"available_spare": 5}, "5 % spare left"),
        ({"percentage_used": 97}, "97 % of rated writes used"),
    ],
)
def test_an_nvme_disk_that_fails_or_is_worn_is_named(changes: dict[str, int], words: str) -> None:
    health = parse_health(nvme(**changes))
    assert isinstance(health, DiskHealth)
    found = judge_health("nvme0n1", health)
    assert found.level is Level.WARN
    assert words in found.text
    assert found.remedy


@pytest.mark.parametrize(
    ("attributes", "level", "words"),
    [
        ({5: (100, 0), 197: (100, 0), 231: (88, 12)}, Level.OK, "12 % of rated writes used"),
        ({5: (90, 16), 197: (100, 2)}, Level.WARN, "18 media errors"),
        ({177: (4, 1000)}, Level.WARN, "96 % of rated writes used"),
        ({9: (99, 4000)}, Level.OK, "sda: passed, 33 °C"),
    ],
)
def test_a_sata_disk_is_judged_by_lost_sectors_and_life_left(
    attributes: dict[int, tuple[int, int]], level: Level, words: str
) -> None:
    health = parse_health(sata(attributes))
    assert isinstance(health, DiskHealth)
    found = judge_health("sda", health)
    assert found.level is level
    assert words in found.text


def test_a_sata_disk_that_gives_itself_up_is_named() -> None:
    health = parse_health(sata({}, passed=False))
    assert isinstance(health, DiskHealth)
    assert judge_health("sda", health).level is Level.WARN


def test_the_newer_field_of_endurance_goes_before_vendors_attributes() -> None:
    health = parse_health({**sata({231: (50, 0)}), "endurance_used": {"current_percent": 7}})
    assert isinstance(health, DiskHealth)
    assert health.used_percent == 7


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (
            {"smartctl": {"messages": [{"string": "Permission denied", "severity": "error"}]}},
            "Permission denied",
        ),
        ({"smartctl": {}}, "the disk tells nothing"),
        ({}, "the disk tells nothing"),
    ],
)
def test_a_disk_that_cannot_be_asked_gives_the_reason(report: dict[str, Any], reason: str) -> None:
    assert parse_health(report) == reason


def put_smartctl(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> None:
    program = folder / "smartctl"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_smartctl_is_asked_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "report").write_text(json.dumps(nvme()))
    put_smartctl(
        monkeypatch, tmp_path, f'echo "$@" > {tmp_path}/arguments; cat {tmp_path}/report; exit 4'
    )
    assert check_health("nvme0n1", "nvme").level is Level.OK
    assert (tmp_path / "arguments").read_text() == "--json -H -A /dev/nvme0n1\n"


@pytest.mark.parametrize("body", ["exit 1", "echo no json", "echo '[]'", "echo '{}'"])
def test_smartctl_that_fails_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    put_smartctl(monkeypatch, tmp_path, body)
    found = check_health("sda", "sata")
    assert found.level is Level.NOTE
    assert found.remedy == "sudo smartctl -H -A /dev/sda"


def test_without_smartctl_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    found = check_health("sda", "sata")
    assert found.level is Level.NOTE
    assert "smartmontools" in found.remedy
    assert check_health("vda", "virtual").level is Level.OK
