"""`kvtier doctor`: what this machine can do, what holds kvtier back, and the remedy. Stateless."""

import json
from dataclasses import asdict

from kvtier.cli.doctor_checks import Finding, check_machine, check_path
from kvtier.cli.main import EXIT_FOUND, EXIT_GOOD
from kvtier.units import parse_bytes


def run_doctor(path: str | None, probe_bytes: str, *, is_json: bool) -> int:
    """Prints one finding a line; returns 1 when something holds kvtier back."""
    size_bytes = parse_bytes(probe_bytes, "--probe-bytes")
    findings = [*(check_path(path, size_bytes) if path else ()), *check_machine()]
    is_good = all(finding.is_good for finding in findings)
    if is_json:
        listed = [asdict(finding) for finding in findings]
        print(json.dumps({"is_good": is_good, "findings": listed}, indent=2))
    else:
        for finding in findings:
            _print_finding(finding)
        if path is None:
            print("     (kvtier doctor PATH also looks at the folder of the disk tier)")
    return EXIT_GOOD if is_good else EXIT_FOUND


def _print_finding(finding: Finding) -> None:
    print(f"{'ok  ' if finding.is_good else 'WARN'} {finding.name:<12} {finding.text}")
    if finding.remedy:
        print(f"                  → {finding.remedy}")
