"""Which checks there are, in the order in which they are shown, in three groups that run apart.

A check is a name and a function; what one found out is kept for those after it. Stateless.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

from kvtier import _core
from kvtier.cli.doctor.cpu_checks import (
    check_cpus,
    check_governor,
    check_irqbalance,
    check_open_files,
    check_uring,
)
from kvtier.cli.doctor.disk_health import check_health
from kvtier.cli.doctor.engine_checks import check_double_offloading, check_engines
from kvtier.cli.doctor.finding import Check
from kvtier.cli.doctor.gpu_checks import check_copies, check_direct_storage, check_gpu
from kvtier.cli.doctor.memory_checks import (
    check_huge_pages,
    check_memlock,
    check_memory,
    check_numa,
    check_shared_memory,
    check_swap,
)
from kvtier.cli.doctor.path_checks import (
    check_direct,
    check_fallocate,
    check_file_system,
    check_space,
    check_writable,
    try_folder,
)
from kvtier.cli.doctor.rate_checks import check_rates
from kvtier.file_system import find_file_system
from kvtier.machine import num_cpus

NamedCheck = tuple[str, Check]


def list_path_checks(path: str, probe_bytes: int) -> Iterator[NamedCheck]:
    """Yields the checks of a folder; those that write only where it can be written."""
    # Each looks when it is asked: a file system that hangs then hangs in the check of its name.
    tried = cache(lambda: try_folder(path))
    probe = cache(lambda: _core.probe_directory(tried().folder, 0))
    found = cache(lambda: find_file_system(path))
    yield "path", lambda: check_writable(tried())
    if not os.path.isdir(tried().folder):
        return
    yield (
        "file system",
        lambda: check_file_system(path, found(), os.statvfs(tried().folder).f_bsize),
    )
    if tried().error is not None:
        return
    yield "space", lambda: check_space(path, probe()["free_bytes"])
    yield "direct I/O", lambda: check_direct(probe())
    yield "fallocate", lambda: check_fallocate(probe())
    yield (
        "raw rate",
        lambda: check_rates(
            tried().folder, probe_bytes, can_be_direct=not probe()["direct_write_error"]
        ),
    )
    yield "disk health", lambda: [check_health(disk, found().bus) for disk in found().disks]


def list_machine_checks() -> Iterator[NamedCheck]:
    """Yields the checks of memory, CPUs, kernel and engines."""
    yield "io_uring", check_uring
    yield "memory", check_memory
    yield "memlock", check_memlock
    yield "huge pages", check_huge_pages
    yield "numa", check_numa
    yield "swap", check_swap
    yield "shared memory", check_shared_memory
    yield "cpus", check_cpus
    yield "cpu governor", lambda: check_governor(os.sched_getaffinity(0))
    yield "irqbalance", lambda: check_irqbalance(num_cpus())
    yield "open files", check_open_files
    yield "engines", check_engines
    yield "offloading", check_double_offloading


def list_gpu_checks() -> Iterator[NamedCheck]:
    """Yields the checks of the GPU."""
    yield "gpu", check_gpu
    yield "gpu copy", check_copies
    yield "gpu storage", check_direct_storage
