"""What this machine, or the container around this process, allows: memory and CPUs.

Reads /proc and the control-group files at each call; thread-safe. The roots are arguments so that
tests can bring their own.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

# Control groups v1 say "no limit" with the largest page-aligned signed number.
_V1_LIMIT_BYTES_MAX: Final = 1 << 60
# Of GPUs in one package with the processor, without memory of their own.
_UNIFIED_MODELS: Final = {"GB10", "Orin", "Thor", "Xavier"}
_PROC: Final = Path("/proc")
_ROOT: Final = Path("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """The smallest memory limit that applies, and the file that said so."""

    limit_bytes: int
    path: str
    kind: str
    """ "memory.max", "memory.high", "memory.limit_in_bytes" or "MemAvailable"."""

    def __str__(self) -> str:
        return f"{self.limit_bytes} bytes ({self.kind} in {self.path})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    """One line of mountinfo, as far as control groups need it."""

    root: str
    mount_point: str
    file_system: str
    options: frozenset[str]


def memory_limit(proc: Path = _PROC, root: Path = _ROOT) -> MemoryLimit:
    """Returns the least of all control-group limits above this process and of MemAvailable.

    `root` is put before the mount points that `proc`/self/mountinfo names. A control-group limit
    wins a tie. Unreadable files are passed over.
    """
    limits = [*_group_memory_limits(proc, root), *_available_memory(proc)]
    if not limits:
        # Neither is readable: assume little rather than everything.
        return MemoryLimit(limit_bytes=1 << 30, path=str(proc / "meminfo"), kind="assumed")
    return min(limits, key=lambda limit: limit.limit_bytes)


def num_cpus(proc: Path = _PROC, root: Path = _ROOT) -> int:
    """Returns how many CPUs this process may use at once: affinity, capped by the groups' quota."""
    try:
        num_allowed = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        num_allowed = os.cpu_count() or 1
    quotas = [math.ceil(quota) for quota in _group_cpu_quotas(proc, root)]
    return max(1, min([num_allowed, *quotas]))


def unified_gpu(root: Path = _ROOT) -> str | None:
    """Returns the name of a GPU that is known to use the machine's memory, or None.

    Looks at what the firmware and the driver say of themselves; loads nothing.
    """
    compatible = "\0".join(_read_lines(root / "proc/device-tree/compatible"))
    for name in compatible.split("\0"):
        if name.startswith("nvidia,tegra"):
            return name
    for information in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        for line in _read_lines(information):
            label, _, model = line.partition(":")
            if label == "Model" and _UNIFIED_MODELS & set(model.split()):
                return model.strip()
    return None


def swap_bytes(proc: Path = _PROC) -> int:
    """Returns the swap space of the machine; 0 when there is none or it cannot be read."""
    return _meminfo_bytes(proc, "SwapTotal") or 0


def swappiness(proc: Path = _PROC) -> int | None:
    """Returns vm.swappiness, or None where it cannot be read."""
    return _read_number(proc / "sys/vm/swappiness")


def has_capability(bit: int, proc: Path = _PROC) -> bool:
    """Returns whether this process has the kernel capability of that number now."""
    for line in _read_lines(proc / "self/status"):
        label, _, text = line.partition(":")
        if label == "CapEff":
            return bool(int(text.strip(), 16) >> bit & 1)
    return False


def _available_memory(proc: Path) -> Iterator[MemoryLimit]:
    for kind in ("MemAvailable", "MemTotal"):
        available_bytes = _meminfo_bytes(proc, kind)
        if available_bytes is not None:
            yield MemoryLimit(limit_bytes=available_bytes, path=str(proc / "meminfo"), kind=kind)
            return


def _meminfo_bytes(proc: Path, name: str) -> int | None:
    for line in _read_lines(proc / "meminfo"):
        label, _, rest = line.partition(":")
        words = rest.split()
        if label == name and words and words[0].isdecimal():
            return int(words[0]) * 1024
    return None


def _group_memory_limits(proc: Path, root: Path) -> Iterator[MemoryLimit]:
    for folder in _group_folders(proc, root, "memory"):
        for kind in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            limit_bytes = _read_number(folder / kind)
            if limit_bytes is not None and limit_bytes < _V1_LIMIT_BYTES_MAX:
                yield MemoryLimit(limit_bytes=limit_bytes, path=str(folder / kind), kind=kind)


def _group_cpu_quotas(proc: Path, root: Path) -> Iterator[float]:
    for folder in _group_folders(proc, root, "cpu"):
        words = " ".join(_read_lines(folder / "cpu.max")).split()
        if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal():
            quota_us, period_us = int(words[0]), int(words[1])
        else:
            quota_us = _read_number(folder / "cpu.cfs_quota_us") or 0
            period_us = _read_number(folder / "cpu.cfs_period_us") or 0
        if quota_us > 0 and period_us > 0:
            yield quota_us / period_us


def _group_folders(proc: Path, root: Path, controller: str) -> Iterator[Path]:
    """Yields the group folders of this process and of all its ancestors, nearest first."""
    mounts = list(_mounts(proc))
    for line in _read_lines(proc / "self/cgroup"):
        hierarchy, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if hierarchy == "0" and not controllers:
            found = [mount for mount in mounts if mount.file_system == "cgroup2"]
        elif controller in controllers.split(","):
            found = [
                mount
                for mount in mounts
                if mount.file_system == "cgroup" and controller in mount.options
            ]
        else:
            continue
        for mount in found:
            yield from _folders_up(mount, group, root)


def _folders_up(mount: _Mount, group: str, root: Path) -> Iterator[Path]:
    top = root / mount.mount_point.lstrip("/")
    try:
        parts = PurePosixPath(group).relative_to(mount.root).parts
    except ValueError:
        # Inside a container the group's path may lie outside of what is mounted: the mount's top
        # is then the nearest folder that can be seen.
        parts = ()
    if ".." in parts:
        parts = ()
    folder = top.joinpath(*parts)
    while True:
        if folder.is_dir():
            yield folder
        if folder == top:
            return
        folder = folder.parent


def _mounts(proc: Path) -> Iterator[_Mount]:
    for line in _read_lines(proc / "self/mountinfo"):
        before, separator, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if separator and len(fields) >= 5 and len(kinds) >= 3:
            yield _Mount(
                root=unescape_mount_field(fields[3]),
                mount_point=unescape_mount_field(fields[4]),
                file_system=kinds[0],
                options=frozenset(kinds[2].split(",")),
            )


def unescape_mount_field(text: str) -> str:
    """Returns a path of mountinfo with the octal escapes of space, tab and newline undone."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _read_number(path: Path) -> int | None:
    lines = _read_lines(path)
    text = lines[0].strip() if lines else ""
    # "max" of v2 and "-1" of v1 mean that there is no limit.
    return int(text) if text.isdecimal() else None
