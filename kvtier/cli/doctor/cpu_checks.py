"""Checks of CPUs and kernel settings: quota, governor, interrupts, io_uring and open files.

Reads the machine at each call; stateless.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Collection
from pathlib import Path
from typing import Final

from kvtier import _core
from kvtier.cli.doctor.finding import Finding, Level
from kvtier.cli.doctor.kernel_files import list_process_folders, read_text
from kvtier.machine import num_cpus

_NUM_CPUS_MIN: Final = 2
_OPEN_FILES_MIN: Final = 1024
_SLOW_GOVERNORS: Final = {"powersave", "conservative", "userspace"}
# These drivers call a governor "powersave" that raises the clock with the load.
_SELF_SCALING_DRIVERS: Final = {"intel_pstate", "amd-pstate-epp", "amd_pstate_epp"}
_ROOT: Final = Path("/")


def check_cpus(root: Path = _ROOT) -> Finding:
    """How many CPUs affinity and the groups' quota leave to this process."""
    num_usable, num_all = num_cpus(root / "proc", root), os.cpu_count() or 1
    of_all = f" of {num_all} (affinity, or cpu.max of the group)" if num_all > num_usable else ""
    text = f"{num_usable} usable{of_all}; checksums by {_core.checksum_path_name()}"
    if num_usable >= _NUM_CPUS_MIN:
        return Finding(name="cpus", text=text)
    return Finding(
        name="cpus",
        level=Level.WARN,
        text=text,
        why="loads and the engine share one CPU: each holds the other up",
        remedy="give the process two CPUs: docker run --cpus 2, CPUQuota=200% of the service",
    )


def check_governor(cpus: Collection[int], root: Path = _ROOT) -> Finding:
    """The governors that set the clock of the CPUs of these numbers."""
    folders = [root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq" for cpu in sorted(cpus)]
    pairs = [
        (read_text(it / "scaling_governor"), read_text(it / "scaling_driver")) for it in folders
    ]
    governors = sorted({governor for governor, _ in pairs if governor})
    if not governors:
        return Finding(name="cpu governor", text="none here: host or firmware sets the clock")
    is_slow = any(
        governor in _SLOW_GOVERNORS and driver not in _SELF_SCALING_DRIVERS
        for governor, driver in pairs
    )
    if is_slow:
        return Finding(
            name="cpu governor",
            level=Level.WARN,
            text=", ".join(governors),
            why="copies and checksums run at a low clock",
            remedy="cpupower frequency-set -g performance",
        )
    if governors == ["performance"]:
        return Finding(name="cpu governor", text="performance")
    return Finding(
        name="cpu governor",
        level=Level.NOTE,
        text=f"{', '.join(governors)}: follows the load",
        why="the first copies after a pause run at a lower clock",
        remedy="for the last microseconds: cpupower frequency-set -g performance",
    )


def check_irqbalance(num_usable: int, root: Path = _ROOT) -> Finding:
    """Whether something spreads interrupts over CPUs."""
    names = (read_text(folder / "comm") for folder in list_process_folders(root / "proc"))
    if "irqbalance" in names:
        return Finding(name="irqbalance", text="runs")
    if num_usable < _NUM_CPUS_MIN:
        return Finding(name="irqbalance", text="not seen, nothing to spread over one CPU")
    return Finding(
        name="irqbalance",
        level=Level.NOTE,
        text="not seen running (a container does not see the host's)",
        why="NVMe spreads its interrupts itself; those of other disks and network cards may all "
        "fall on one CPU",
        remedy="on the host: apt-get install irqbalance, systemctl enable --now irqbalance",
    )


def check_open_files() -> Finding:
    """How many files this process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"at most {soft} (may be raised to {hard})" if soft != hard else f"at most {soft}"
    if soft == resource.RLIM_INFINITY or soft >= _OPEN_FILES_MIN:
        return Finding(name="open files", text=text)
    return Finding(
        name="open files",
        level=Level.NOTE,
        text=text,
        why="kvtier opens and closes its files in turns then; the engine's server may refuse "
        "connections",
        remedy=f"ulimit -n {_OPEN_FILES_MIN} or more, LimitNOFILE= of the service",
    )


def check_uring() -> Finding:
    """Asks the kernel itself: a sysctl that allows it says nothing of a container's filter."""
    why = "threads are used instead: more CPU for each read, slower with small blocks"
    try:
        from kvtier.liburing import probe_opcodes

        probe = probe_opcodes()
    except ImportError as error:
        return Finding(
            name="io_uring",
            level=Level.NOTE,
            text=f"cannot be asked: {error}",
            why="the store itself asks again when it opens",
            remedy="install what is missing and build again",
        )
    except OSError as error:
        text, _, remedy = str(error.strerror).partition("; remedy: ")
        return Finding(
            name="io_uring",
            level=Level.WARN,
            text=f"refused, errno {error.errno}: {text}",
            why=why,
            remedy=remedy or "io=threads says that this is meant",
        )
    missing = sorted(probe.missing_opcodes)
    if missing:
        return Finding(
            name="io_uring",
            level=Level.WARN,
            text=f"lacks {', '.join(missing)}",
            why=why,
            remedy="Linux 5.6 or later",
        )
    return Finding(
        name="io_uring",
        text=f"works; {len(probe.opcodes)} opcodes, among them fixed reads and writes",
    )
