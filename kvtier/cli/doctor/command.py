"""`kvtier doctor`: what this machine can do, what holds kvtier back, and the remedy. Stateless."""

from __future__ import annotations

import json
import time
from typing import Final

from kvtier.cli.doctor.check_groups import list_machine_checks
from kvtier.cli.doctor.finding import Finding, Verdict, judge, run_check
from kvtier.cli.doctor.group_process import GroupProcess
from kvtier.cli.doctor.report import print_report
from kvtier.cli.main import EXIT_FOUND, EXIT_GOOD
from kvtier.units import parse_bytes

# The disk takes three of it; a driver with many GPUs two.
_GROUP_TIMEOUT_S: Final = 5.0


def run_doctor(path: str | None, probe_bytes: str, *, is_json: bool, is_verbose: bool) -> int:
    """Prints one finding a line and the verdict; returns 1 when it is not ok."""
    size_bytes = parse_bytes(probe_bytes, "--probe-bytes")
    started_s = time.monotonic()
    findings = find_all(path, size_bytes)
    seconds = time.monotonic() - started_s
    verdict, _ = judge(findings)
    is_good = verdict is Verdict.OK
    if is_json:
        report = {
            "verdict": verdict.value,
            "is_good": is_good,
            "findings": [finding.describe() for finding in findings],
            "seconds": round(seconds, 2),
        }
        print(json.dumps(report, indent=2))
    else:
        print_report(findings, seconds, is_verbose=is_verbose)
        if path is None:
            print("(kvtier doctor PATH also looks at the folder of the disk tier)")
    return EXIT_GOOD if is_good else EXIT_FOUND


def find_all(path: str | None, probe_bytes: int) -> list[Finding]:
    """Runs all checks: of folder and GPU in processes of their own, which may hang, of the rest
    meanwhile.
    """
    groups: list[GroupProcess] = []
    try:
        if path is not None:
            groups.append(GroupProcess("path", path, str(probe_bytes)))
        groups.append(GroupProcess("gpu"))
        of_machine = [
            finding for name, check in list_machine_checks() for finding in run_check(name, check)
        ]
        in_groups = [finding for group in groups for finding in group.finish(_GROUP_TIMEOUT_S)]
    except BaseException:
        # Ctrl-C: their files have no name, so nothing of them is left.
        for group in groups:
            group.kill()
        raise
    return [*in_groups, *of_machine]
