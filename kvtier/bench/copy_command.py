"""`kvtier bench copy`: opens a device, measures transfers beside its limits, reports. One thread,
but where the harm to a kernel is measured.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import kvtier
from kvtier import _core
from kvtier.bench.block_source import BenchmarkError
from kvtier.bench.copy_figures import (
    CopyRun,
    measure_both,
    measure_small,
    measure_submit,
    measure_sweep,
)
from kvtier.bench.copy_report import (
    BOTH,
    HARM,
    PAGE_LOCK,
    SMALL,
    SUBMIT,
    SWEEP,
    CopyReport,
    CopyRow,
    print_copy_report,
)
from kvtier.bench.copy_rig import open_device, open_rig
from kvtier.bench.copy_surroundings import measure_harm, measure_page_locking
from kvtier.bench.figure import busy_note, load_average, print_figures
from kvtier.bench.output_files import check_output_files
from kvtier.errors import ConfigError
from kvtier.units import KIB, MIB, format_bytes, parse_bytes

Part = Callable[[CopyRun], Iterator[CopyRow]]

PARTS: dict[str, Part] = {
    SWEEP: measure_sweep,
    BOTH: measure_both,
    SMALL: measure_small,
    SUBMIT: measure_submit,
    PAGE_LOCK: measure_page_locking,
    HARM: measure_harm,
}
_GPU_BYTES = 256 * MIB
_HOST_BYTES = 16 * MIB
_QUICK_SHARE = 4
_MEMORY_PER_CASE = 4
_BYTES_MIN = 64 * KIB
_DRIVER_VERSION_FILE = Path("/proc/driver/nvidia/version")
_GIT_TIMEOUT_S = 5


def run_copy(
    *,
    device: str,
    parts: Sequence[str] | None,
    num_bytes: str,
    is_quick: bool,
    is_json: bool,
    output: str | None,
    plot: str | None,
    commit: str | None,
) -> int:
    """Runs the command; returns its exit code. Raises KvtierError for what can't be run."""
    unknown = [part for part in parts or () if part not in PARTS]
    if unknown:
        raise ConfigError(f"only: unknown part {unknown[0]!r}; there are {', '.join(PARTS)}")
    case_bytes = parse_bytes(num_bytes, "bytes")
    if 0 < case_bytes < _BYTES_MIN:
        raise ConfigError(f"bytes: {case_bytes} measures nothing; use {_BYTES_MIN} or more")
    check_output_files(output=output, plot=plot)
    opened, reason = open_device(device)
    first_line = _first_line(opened, reason)
    print(first_line, file=sys.stderr if is_json else sys.stdout, flush=True)
    load_before = load_average()
    try:
        report = measure_copies(
            opened,
            parts=parts or tuple(PARTS),
            case_bytes=case_bytes,
            is_quick=is_quick,
            first_line=first_line,
            commit=commit,
        )
    except BenchmarkError as error:
        print(f"kvtier bench copy: {error}", file=sys.stderr)
        return 1
    _show(report, is_json=is_json)
    if output is not None:
        Path(output).write_text(json.dumps(report.to_json()) + "\n", encoding="utf-8")
    if plot is not None:
        from kvtier.bench.copy_plot import draw_copies

        draw_copies(report, Path(plot))
    note = busy_note(load_before)
    if note:
        print(note, file=sys.stderr)
    return 0 if report.is_good else 1


def measure_copies(
    device: _core.TransferDevice,
    *,
    parts: Sequence[str],
    case_bytes: int = 0,
    is_quick: bool = False,
    first_line: str = "",
    commit: str | None = None,
) -> CopyReport:
    """Measures; case_bytes 0: as fits the device. Raises BenchmarkError, KvtierError."""
    info = device.info()
    is_on_gpu = info["kind"] != "host"
    fitting_bytes = _GPU_BYTES if is_on_gpu else _HOST_BYTES
    if is_quick:
        fitting_bytes //= _QUICK_SHARE
    is_whole = case_bytes == 0 and not is_quick
    case_bytes = case_bytes or fitting_bytes
    with open_rig(device, _MEMORY_PER_CASE * case_bytes) as rig:
        engine = rig.make_engine()
        run = CopyRun(rig=rig, engine=engine, case_bytes=case_bytes, is_quick=is_quick)
        rows: list[CopyRow] = []
        for part in parts:
            print(f"measuring: {part}", file=sys.stderr)
            rows += PARTS[part](run)
        if engine.note():
            run.add_note(engine.note())
        return CopyReport(
            first_line=first_line,
            device={**info, "case_bytes": case_bytes},
            driver=find_driver_version() if is_on_gpu else None,
            version=kvtier.__version__,
            commit=commit or find_commit(),
            is_on_gpu=is_on_gpu,
            is_judged=is_on_gpu and is_whole,
            rows=rows,
            notes=run.notes,
            wrong_bytes=run.wrong_bytes,
        )


def find_driver_version(file: Path = _DRIVER_VERSION_FILE) -> str | None:
    """Returns the version of the kernel's part of the driver; None where it is not told."""
    try:
        match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return match[1] if match else None


def find_commit(folder: Path = Path(kvtier.__file__).parents[1]) -> str | None:
    """Returns the commit that kvtier is run from; None for one that was installed."""
    if not (folder / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _first_line(device: _core.TransferDevice, reason: str) -> str:
    info = device.info()
    if info["kind"] != "host":
        return f"GPU: {info['name']}" + (f" ({info['note']})" if info["note"] else "")
    return (
        f"no GPU ({reason}): the figures are those of the host's reference device, which copies in "
        "memory and says nothing of a GPU"
    )


def _show(report: CopyReport, *, is_json: bool) -> None:
    if is_json:
        print(json.dumps(report.to_json()))
    else:
        case = format_bytes(int(str(report.device["case_bytes"])))
        print(f"{case} a case; kvtier {report.version}, commit {report.commit or 'unknown'}")
        print_copy_report(report)
        if report.figures():
            print_figures(report.figures())
    if report.wrong_bytes:
        print(f"kvtier bench copy: wrong bytes: {report.wrong_bytes:,}", file=sys.stderr)
