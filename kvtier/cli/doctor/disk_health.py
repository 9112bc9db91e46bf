"""Check of a disk's own health report (SMART), as smartctl prints it.

`parse_health` and `judge_health` are pure functions; the check runs smartctl where it is installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any, Final

from kvtier.cli.doctor.finding import Finding, Level

_TIMEOUT_S: Final = 1.0
_USED_PERCENT_MAX: Final = 90
# ATA attributes whose raw value counts sectors that are lost, or about to be.
_LOST_SECTOR_IDS: Final = frozenset({5, 187, 197, 198})
# ATA attributes whose value is the percentage of life that is left, by vendor.
_LIFE_LEFT_IDS: Final = (231, 233, 202, 177, 173)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskHealth:
    """What a disk says of itself; None where it does not say."""

    is_passed: bool | None
    used_percent: int | None
    """Of its rated writes; may exceed 100."""
    num_errors: int | None
    """Media errors (NVMe), or sectors lost or pending (SATA)."""
    temperature_c: int | None
    warnings: tuple[str, ...] = ()


def parse_health(report: dict[str, Any]) -> DiskHealth | str:
    """Returns what `smartctl --json -H -A` says, or why it says nothing."""
    status = report.get("smart_status", {}).get("passed")
    log = report.get("nvme_smart_health_information_log")
    table = report.get("ata_smart_attributes", {}).get("table")
    temperature_c = report.get("temperature", {}).get("current")
    if status is None and log is None and table is None:
        messages = report.get("smartctl", {}).get("messages", [])
        texts = [str(it.get("string", "")) for it in messages]
        return "; ".join(filter(None, texts)) or "the disk tells nothing"
    if log is not None:
        return DiskHealth(
            is_passed=status,
            used_percent=log.get("percentage_used"),
            num_errors=log.get("media_errors"),
            temperature_c=temperature_c,
            warnings=_nvme_warnings(log),
        )
    attributes = {it.get("id"): it for it in table or []}
    used_percent = report.get("endurance_used", {}).get("current_percent")
    for attribute_id in _LIFE_LEFT_IDS:
        if used_percent is None and attribute_id in attributes:
            used_percent = 100 - int(attributes[attribute_id].get("value", 100))
    counts = [
        int(attributes[it].get("raw", {}).get("value", 0))
        for it in _LOST_SECTOR_IDS & attributes.keys()
    ]
    return DiskHealth(
        is_passed=status,
        used_percent=used_percent,
        num_errors=sum(counts) if counts else None,
        temperature_c=temperature_c,
    )


def judge_health(disk: str, health: DiskHealth) -> Finding:
    """Says what a disk's report means."""
    parts = [
        {True: "passed", False: "FAILED", None: "no overall verdict"}[health.is_passed],
        "" if health.used_percent is None else f"{health.used_percent} % of rated writes used",
        "" if health.num_errors is None else f"{health.num_errors} media errors",
        "" if health.temperature_c is None else f"{health.temperature_c} °C",
        *health.warnings,
    ]
    text = f"{disk}: {', '.join(filter(None, parts))}"
    is_failing = health.is_passed is False or bool(health.warnings) or bool(health.num_errors)
    if is_failing:
        return Finding(
            name="disk health",
            level=Level.WARN,
            text=text,
            why="blocks that cannot be read back are computed again; other data is at risk too",
            remedy=f"save what matters and replace the disk; all of it: smartctl -a /dev/{disk}",
        )
    if health.used_percent is not None and health.used_percent >= _USED_PERCENT_MAX:
        return Finding(
            name="disk health",
            level=Level.WARN,
            text=text,
            why="its rated writes are nearly used up, and a cache writes much",
            remedy="use another disk for the disk tier, or a smaller disk_bytes",
        )
    return Finding(name="disk health", text=text)


def check_health(disk: str, bus: str) -> Finding:
    """Asks smartctl for the disk of that kernel name."""
    if bus == "virtual":
        return Finding(name="disk health", text=f"{disk} is virtual: its host knows")
    command = f"smartctl -H -A /dev/{disk}"
    if shutil.which("smartctl") is None:
        return _unknown(
            f"{disk}: smartctl is not installed", f"apt-get install smartmontools, sudo {command}"
        )
    try:
        done = subprocess.run(
            ["smartctl", "--json", "-H", "-A", f"/dev/{disk}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        report = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return _unknown(f"{disk}: smartctl gave no answer in {_TIMEOUT_S} s", f"sudo {command}")
    except (OSError, ValueError) as error:
        return _unknown(f"{disk}: smartctl failed: {error}", f"sudo {command}")
    health = parse_health(report) if isinstance(report, dict) else "smartctl printed no object"
    if isinstance(health, str):
        return _unknown(f"{disk}: {health}", f"sudo {command}")
    return judge_health(disk, health)


def _nvme_warnings(log: dict[str, Any]) -> tuple[str, ...]:
    warnings = []
    if log.get("critical_warning"):
        warnings.append(f"critical warning 0x{int(log['critical_warning']):02x}")
    spare, threshold = log.get("available_spare"), log.get("available_spare_threshold")
    if spare is not None and threshold is not None and spare < threshold:
        warnings.append(f"{spare} % spare left, below its threshold of {threshold} %")
    return tuple(warnings)


def _unknown(text: str, remedy: str) -> Finding:
    return Finding(
        name="disk health",
        level=Level.NOTE,
        text=text,
        why="a worn or failing disk shows there first",
        remedy=remedy,
    )
