"""What harms or does nothing in a store that is about to be opened, said before it is.

Reads /proc and /sys at each call; thread-safe.
"""

import os
from pathlib import Path
from typing import Final

from kvtier.capacity import Capacity
from kvtier.file_system import find_concerns, find_file_system
from kvtier.machine import swap_bytes, swappiness
from kvtier.settings import Settings
from kvtier.units import format_bytes

SWAPPINESS_MAX: Final = 10


def list_warnings(
    settings: Settings, capacity: Capacity, proc: Path = Path("/proc")
) -> tuple[str, ...]:
    """Returns sentences on what the settings ask for in vain, and on what harms on this machine."""
    return (
        *settings.warnings,
        *capacity.warnings,
        *_path_warnings(settings.config.path, proc),
        *_swap_warnings(capacity, proc),
    )


def _path_warnings(path: str | os.PathLike[str] | None, proc: Path) -> list[str]:
    if path is None:
        return []
    file_system = find_file_system(path, proc)
    concerns = find_concerns(path, file_system)
    if not concerns and file_system.is_system_disk:
        # Without the folder's name: it is said once, however many stores lie there.
        concerns.append(
            "path is on the system disk and shares its speed and space; choose a folder on a "
            "data disk"
        )
    return concerns


def _swap_warnings(capacity: Capacity, proc: Path) -> list[str]:
    known_bytes, inclination = swap_bytes(proc), swappiness(proc)
    if not known_bytes or inclination is None or inclination <= SWAPPINESS_MAX:
        return []
    if not capacity.host_bytes:
        return []
    return [
        f"the machine has {format_bytes(known_bytes)} of swap and vm.swappiness={inclination}: "
        "blocks in host memory may be swapped out; sysctl vm.swappiness=1"
    ]
