"""The checks of `kvtier doctor`: each looks at one thing and says what to do about it.

Reads the machine at each call; stateless.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvtier import _core
from kvtier.capacity import HOST_SHARE_PERCENT, DiskSpace, resolve_capacity
from kvtier.config import Config
from kvtier.errors import ConfigError, KvtierError
from kvtier.file_system import find_concerns, find_file_system
from kvtier.machine import (
    has_capability,
    memory_limit,
    num_cpus,
    swap_bytes,
    swappiness,
    unified_gpu,
)
from kvtier.units import GIB, MIB, format_bytes

_FREE_BYTES_MIN: Final = GIB
_READ_GB_PER_S_MIN: Final = 1.0
_SWAPPINESS_MAX: Final = 10
_MEMLOCK_BYTES_MIN: Final = 64 * MIB
_CAP_IPC_LOCK: Final = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the doctor."""

    name: str
    is_good: bool
    text: str
    remedy: str = ""


def check_path(path: str, probe_bytes: int) -> Iterator[Finding]:
    """Yields what can be said of a folder; tries it with a temporary file in it or its parent."""
    folder = os.path.abspath(path)
    while not os.path.lexists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    where = path if os.path.lexists(path) else f"{path} (does not exist yet; tried {folder})"
    if not os.path.isdir(folder):
        yield Finding(
            name="path",
            is_good=False,
            text=f"{folder} is not a folder",
            remedy="choose another path, or move the file away",
        )
        return
    try:
        probe = _core.probe_directory(folder, probe_bytes)
    except KvtierError as error:
        yield Finding(
            name="path",
            is_good=False,
            text=str(error),
            remedy=f"give this user (uid {os.geteuid()}) write access to {folder}",
        )
        return
    yield Finding(
        name="path",
        is_good=probe["is_writable"],
        text=f"{where}: " + (probe["write_error"] or "writable"),
        remedy="" if probe["is_writable"] else f"give uid {os.geteuid()} write access to {folder}",
    )
    yield _space(probe, path)
    yield from _file_system(path, probe)
    if probe["is_writable"]:
        yield _direct(probe)
        yield _fallocate(probe)
        yield from _rates(probe)


def check_machine() -> Iterator[Finding]:
    """Yields what can be said of memory, CPUs and kernel settings."""
    yield _memory()
    yield Finding(
        name="cpus",
        is_good=num_cpus() >= 2,
        text=f"{num_cpus()} usable; checksums by {_core.checksum_path_name()}",
        remedy=""
        if num_cpus() >= 2
        else "give the process two CPUs: loads and the engine share one",
    )
    yield _numa()
    yield _memlock()
    yield _swap()
    yield _uring()


def _space(probe: _core.DirectoryProbe, path: str) -> Finding:
    own_files = _core.list_own_files(path) if os.path.isdir(path) else []
    own_bytes = sum(allocated_bytes for _, allocated_bytes in own_files)
    space = DiskSpace(own_bytes=own_bytes, free_bytes=probe["free_bytes"])
    is_good = own_bytes + space.free_bytes >= _FREE_BYTES_MIN
    auto_bytes = (space.own_bytes + space.free_bytes) * 80 // 100
    return Finding(
        name="space",
        is_good=is_good,
        text=f"{format_bytes(space.free_bytes)} free, {format_bytes(own_bytes)} kvtier's own; "
        f"disk_bytes=auto would be {format_bytes(auto_bytes)}",
        remedy="" if is_good else "free some space, or choose a folder on a larger disk",
    )


def _file_system(path: str, probe: _core.DirectoryProbe) -> Iterator[Finding]:
    found = find_file_system(path)
    kind = found.kind or probe["file_system"]
    place = f"{kind} at {found.mount_point}, {found.medium}" + (
        ", the system disk" if found.is_system_disk else ""
    )
    concerns = find_concerns(path, found)
    if not concerns:
        yield Finding(name="file system", is_good=True, text=place)
    for concern in concerns:
        text, _, remedy = concern.partition("; ")
        yield Finding(name="file system", is_good=False, text=f"{place}: {text}", remedy=remedy)


def _direct(probe: _core.DirectoryProbe) -> Finding:
    source = "reported by statx" if probe["is_alignment_reported"] else "assumed"
    alignment = (
        f"alignment {probe['direct_alignment_offset_bytes']} bytes in the file, "
        f"{probe['direct_alignment_memory_bytes']} in memory ({source})"
    )
    error = probe["direct_write_error"]
    return Finding(
        name="direct I/O",
        is_good=not error,
        text=f"does not work: {error}" if error else f"works; {alignment}",
        remedy="loads go through the page cache; use ext4 or xfs on a local disk" if error else "",
    )


def _fallocate(probe: _core.DirectoryProbe) -> Finding:
    error = probe["fallocate_error"]
    return Finding(
        name="fallocate",
        is_good=not error,
        text=f"does not work: {error}" if error else "works",
        remedy="space is not reserved ahead, a full disk shows late; use ext4 or xfs"
        if error
        else "",
    )


def _rates(probe: _core.DirectoryProbe) -> Iterator[Finding]:
    read, write = probe["read_gb_per_s"], probe["write_gb_per_s"]
    if read > 0 and write > 0:
        is_good = read >= _READ_GB_PER_S_MIN
        yield Finding(
            name="raw rate",
            is_good=is_good,
            text=f"reads {read:.2f} GB/s, writes {write:.2f} GB/s (short probe)",
            remedy="" if is_good else "slower than most recomputation; use an NVMe disk",
        )


def _memory() -> Finding:
    limit = memory_limit()
    place = f"limit {format_bytes(limit.limit_bytes)} by {limit.kind} in {limit.path}"
    try:
        capacity = resolve_capacity(
            Config(unified="off"), limit, DiskSpace(own_bytes=0, free_bytes=GIB)
        )
    except ConfigError as error:
        return Finding(
            name="memory", is_good=False, text=str(error), remedy="raise the limit of the container"
        )
    gpu = unified_gpu()
    if gpu is not None:
        return Finding(
            name="memory",
            is_good=True,
            text=f"{place}, one memory with {gpu}: with a disk tier host_bytes=auto is 0, and "
            f"{format_bytes(capacity.staging_bytes)} are for staging",
            remedy="",
        )
    auto_bytes = capacity.host_bytes
    is_whole = auto_bytes == limit.limit_bytes * HOST_SHARE_PERCENT // 100
    return Finding(
        name="memory",
        is_good=is_whole,
        text=f"{place}; host_bytes=auto would be {format_bytes(auto_bytes)}, and "
        f"{format_bytes(capacity.staging_bytes)} for staging",
        remedy="" if is_whole else "raise the limit of the container, or lower staging_bytes",
    )


def _numa() -> Finding:
    probe = _core.probe_numa()
    is_several = probe["text"] not in {"one node", "unknown nodes"}
    text = f"nodes {probe['nodes']} usable, numa=auto: {probe['text']}"
    return Finding(
        name="numa",
        is_good=not probe["refusal"],
        text=text if is_several else probe["text"],
        remedy="host memory lies where the kernel puts it; let the process call mbind (containers: "
        "CAP_SYS_NICE), or set numa=off"
        if probe["refusal"]
        else "",
    )


def _memlock() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    is_privileged = has_capability(_CAP_IPC_LOCK)
    is_good = is_privileged or soft == resource.RLIM_INFINITY or soft >= _MEMLOCK_BYTES_MIN
    shown = _limit_text(soft)
    if hard != soft:
        shown += f", may be raised to {_limit_text(hard)}"
    return Finding(
        name="memlock",
        is_good=is_good,
        text=f"may lock {shown}"
        + (" (does not bind this process: CAP_IPC_LOCK)" if is_privileged else ""),
        remedy=""
        if is_good
        else "page-locking and registered buffers will be refused; raise it (ulimit -l unlimited, "
        "LimitMEMLOCK= of the service)",
    )


def _limit_text(limit_bytes: int) -> str:
    return "unlimited" if limit_bytes == resource.RLIM_INFINITY else format_bytes(limit_bytes)


def _swap() -> Finding:
    size_bytes, level = swap_bytes(), swappiness()
    if size_bytes == 0:
        return Finding(name="swap", is_good=True, text="no swap space")
    is_good = level is not None and level <= _SWAPPINESS_MAX
    return Finding(
        name="swap",
        is_good=is_good,
        text=f"{format_bytes(size_bytes)} of swap, vm.swappiness={level}",
        remedy="" if is_good else "cached blocks may be swapped out: sysctl vm.swappiness=1",
    )


def _uring() -> Finding:
    """Asks the kernel itself: a sysctl that allows it says nothing of a container's filter."""
    try:
        from kvtier.liburing import probe_opcodes

        probe = probe_opcodes()
    except ImportError as error:
        return Finding(
            name="io_uring", is_good=False, text=f"cannot be asked: {error}",
            remedy="threads are used instead; install what is missing and build again",
        )  # fmt: skip
    except OSError as error:
        text, _, remedy = str(error.strerror).partition("; remedy: ")
        return Finding(
            name="io_uring",
            is_good=False,
            text=f"refused, errno {error.errno}: {text}",
            remedy=f"threads are used instead; {remedy}".removesuffix("; "),
        )
    missing = sorted(probe.missing_opcodes)
    return Finding(
        name="io_uring",
        is_good=not missing,
        text=f"lacks {', '.join(missing)}"
        if missing
        else f"works; {len(probe.opcodes)} opcodes, among them fixed reads and writes",
        remedy="threads are used instead; Linux 5.6 or later" if missing else "",
    )
