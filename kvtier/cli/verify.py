"""`kvtier verify`: reads and checks every block of a store that nobody has open. Stateless."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from kvtier import _core
from kvtier.cli.main import EXIT_FOUND, EXIT_GOOD
from kvtier.store_folder import require_folder
from kvtier.units import format_bytes, parse_bytes

_LINES_MAX = 20


def run_verify(path: str, *, rate_max: str | None = None, is_json: bool) -> int:
    """Prints what was checked and what failed; returns 1 when anything is corrupt."""
    bytes_per_s_max = 0 if rate_max is None else parse_bytes(rate_max, "--rate")
    is_shown = not is_json and sys.stderr.isatty()
    report = _core.verify_directory(
        require_folder(path), _progress_line() if is_shown else None, bytes_per_s_max
    )
    if is_shown:
        print("\r\x1b[K", end="", file=sys.stderr)
    num_bad = report["num_corrupt"] + report["damaged_entries"] + report["unreadable"]
    if is_json:
        print(json.dumps({**report, "is_good": num_bad == 0}, indent=2))
        return EXIT_FOUND if num_bad else EXIT_GOOD
    print(
        f"{path}: {report['blocks']} blocks ({format_bytes(report['bytes'])}) checked, "
        f"{report['num_corrupt']} corrupt, {report['unreadable']} unreadable, "
        f"{report['damaged_entries']} damaged table entries"
    )
    if report["num_torn"]:
        print(
            f"{report['num_torn']} blocks were being replaced when the store was not closed: "
            "they count as missing and are never served"
        )
    for name in report["unknown_files"]:
        print(f"{name}: not readable by this version (left alone)")
    for block in report["damaged"][:_LINES_MAX]:
        print(f"{block['segment']} slot {block['slot']} key {block['key']}: {block['reason']}")
    if len(report["damaged"]) > _LINES_MAX:
        print(f"… and {len(report['damaged']) - _LINES_MAX} more (--json lists them)")
    print("found damage" if num_bad else "good")
    return EXIT_FOUND if num_bad else EXIT_GOOD


def _progress_line() -> Callable[[int, int], None]:
    last_percent = -1

    def report(num_done: int, num_blocks: int) -> None:
        nonlocal last_percent
        percent = num_done * 100 // max(1, num_blocks)
        if percent != last_percent:
            last_percent = percent
            text = f"\rchecking {num_done} of {num_blocks} blocks ({percent} %)"
            print(text, end="", file=sys.stderr, flush=True)

    return report
