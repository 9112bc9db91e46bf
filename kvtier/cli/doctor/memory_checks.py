"""Checks of memory: limits, page-locking, huge pages, NUMA, swap and shared memory.

Reads the machine at each call; stateless.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final

from kvtier import _core
from kvtier.capacity import HOST_SHARE_PERCENT, DiskSpace, resolve_capacity
from kvtier.cli.doctor.finding import Finding, Level
from kvtier.cli.doctor.kernel_files import read_choice
from kvtier.config import Config
from kvtier.errors import ConfigError
from kvtier.machine import has_capability, memory_limit, swap_bytes, swappiness, unified_gpu
from kvtier.units import GIB, MIB, format_bytes

_SWAPPINESS_MAX: Final = 10
_MEMLOCK_BYTES_MIN: Final = 64 * MIB
_CAP_IPC_LOCK: Final = 14
_SHARED_MEMORY_BYTES_MIN: Final = GIB
_ROOT: Final = Path("/")


def check_memory(root: Path = _ROOT) -> Finding:
    """The limit that applies (groups of v1 and v2, or what is available), and what auto takes."""
    limit = memory_limit(root / "proc", root)
    place = f"limit {format_bytes(limit.limit_bytes)} by {limit.kind} in {limit.path}"
    space = DiskSpace(own_bytes=0, free_bytes=GIB)
    try:
        capacity = resolve_capacity(Config(unified="off"), limit, space)
    except ConfigError as error:
        return Finding(
            name="memory",
            level=Level.FAIL,
            text=str(error),
            why="no store opens with its default sizes",
            remedy="raise the limit of the container, or lower staging_bytes",
        )
    staging_text = format_bytes(capacity.staging_bytes)
    gpu = unified_gpu(root)
    if gpu is not None:
        return Finding(
            name="memory",
            text=f"{place}, one memory with {gpu}: with a disk tier host_bytes=auto is 0, and "
            f"{staging_text} are for staging",
        )
    auto_bytes = capacity.host_bytes
    is_whole = auto_bytes == limit.limit_bytes * HOST_SHARE_PERCENT // 100
    return Finding(
        name="memory",
        level=Level.OK if is_whole else Level.WARN,
        text=f"{place}; host_bytes=auto takes {format_bytes(auto_bytes)}, staging {staging_text}",
        why=""
        if is_whole
        else f"auto takes less than its {HOST_SHARE_PERCENT} %, or the process would not fit",
        remedy="" if is_whole else "raise the limit of the container, or lower staging_bytes",
    )


def check_memlock(root: Path = _ROOT) -> Finding:
    """How much memory this process may lock."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    is_privileged = has_capability(_CAP_IPC_LOCK, root / "proc")
    is_enough = is_privileged or soft == resource.RLIM_INFINITY or soft >= _MEMLOCK_BYTES_MIN
    shown = _limit_text(soft)
    if hard != soft:
        shown += f", may be raised to {_limit_text(hard)}"
    privilege = " (does not bind this process: CAP_IPC_LOCK)" if is_privileged else ""
    if is_enough:
        return Finding(name="memlock", text=f"may lock {shown}{privilege}")
    return Finding(
        name="memlock",
        level=Level.WARN,
        text=f"may lock {shown}, less than the {format_bytes(_MEMLOCK_BYTES_MIN)} of staging",
        why="registered buffers are refused: more CPU for each read and write",
        remedy="raise it: ulimit -l unlimited, LimitMEMLOCK=infinity of the service, "
        "docker run --ulimit memlock=-1",
    )


def check_huge_pages(root: Path = _ROOT) -> Finding:
    """Transparent huge pages, for private memory and for shared memory."""
    folder = root / "sys/kernel/mm/transparent_hugepage"
    mode, shared_mode = read_choice(folder / "enabled"), read_choice(folder / "shmem_enabled")
    text = f"transparent: {mode or 'unknown'}; of shared memory: {shared_mode or 'unknown'}"
    if mode == "never":
        return Finding(
            name="huge pages",
            level=Level.WARN,
            text=text,
            why="direct reads into small pages are slower: 1.3 instead of 3.8 GB/s on a virtual "
            "disk",
            remedy=f"echo madvise > {folder / 'enabled'}",
        )
    if shared_mode in {"never", "deny"}:
        return Finding(
            name="huge pages",
            level=Level.NOTE,
            text=text,
            why="host memory that processes share (shared_arena) gets small pages",
            remedy=f"with workers in processes of their own: echo advise > "
            f"{folder / 'shmem_enabled'}",
        )
    return Finding(name="huge pages", text=text)


def check_numa() -> Finding:
    """What numa=auto comes to."""
    probe = _core.probe_numa()
    is_several = probe["text"] not in {"one node", "unknown nodes"}
    text = f"nodes {probe['nodes']} usable, numa=auto: {probe['text']}"
    if not probe["refusal"]:
        return Finding(name="numa", text=text if is_several else probe["text"])
    return Finding(
        name="numa",
        level=Level.WARN,
        text=text if is_several else probe["text"],
        why="host memory lies where the kernel puts it, maybe far from the GPU",
        remedy="let the process call mbind (containers: CAP_SYS_NICE), or set numa=off",
    )


def check_swap(root: Path = _ROOT) -> Finding:
    """Swap space and how readily the kernel uses it."""
    size_bytes, level = swap_bytes(root / "proc"), swappiness(root / "proc")
    if size_bytes == 0:
        return Finding(name="swap", text="no swap space")
    text = f"{format_bytes(size_bytes)} of swap, vm.swappiness={level}"
    if level is not None and level <= _SWAPPINESS_MAX:
        return Finding(name="swap", text=text)
    return Finding(
        name="swap",
        level=Level.WARN,
        text=text,
        why="cached blocks may be swapped out: first tokens after 8 s instead of 1 s, and 30 % "
        "more SSD writes, were seen",
        remedy="sysctl vm.swappiness=1",
    )


def check_shared_memory(folder: str = "/dev/shm") -> Finding:
    """Size of /dev/shm: an engine's workers talk through it."""
    try:
        status = os.statvfs(folder)
    except OSError as error:
        return Finding(
            name="shared memory",
            level=Level.NOTE,
            text=f"{folder}: {error.strerror}",
            why="an engine with several workers needs it; kvtier does not",
            remedy=f"mount a tmpfs at {folder}",
        )
    size_bytes = status.f_blocks * status.f_frsize
    text = f"{folder} has {format_bytes(size_bytes)}"
    if size_bytes >= _SHARED_MEMORY_BYTES_MIN:
        return Finding(name="shared memory", text=text)
    return Finding(
        name="shared memory",
        level=Level.NOTE,
        text=text,
        why="an engine with several workers may fail at its start; kvtier does not use it",
        remedy="docker run --ipc=host, or --shm-size 8g",
    )


def _limit_text(limit_bytes: int) -> str:
    return "unlimited" if limit_bytes == resource.RLIM_INFINITY else format_bytes(limit_bytes)
