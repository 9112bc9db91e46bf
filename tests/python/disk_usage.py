"""How much space the files of a folder have allocated, while others create and remove them."""

import os
from pathlib import Path

SECTOR_BYTES = 512


def scan_bytes(folder: Path) -> dict[str, int]:
    """Returns the allocated bytes by name; a file that goes meanwhile is left out."""
    found: dict[str, int] = {}
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
    except FileNotFoundError:
        return {}
    for name in names:
        try:
            found[name] = os.lstat(folder / name).st_blocks * SECTOR_BYTES
        except FileNotFoundError:
            continue
    return found


class CapWatch:
    """Samples a folder and remembers the most that it surely held at one instant.

    A sum over files is not an instant: one may be counted, go, and make room for the next that is
    counted too. So only what two scans in a row agree on counts, file by file.
    """

    def __init__(self, folder: Path, foreign_names: frozenset[str] = frozenset()) -> None:
        self._folder = folder
        self._foreign_names = foreign_names
        self._last: dict[str, int] = {}
        self.num_samples = 0
        self.bytes_max = 0

    def sample(self) -> int:
        """Returns the bytes that were allocated between the last sample and this one."""
        found = scan_bytes(self._folder)
        steady_bytes = sum(
            min(allocated_bytes, self._last.get(name, 0))
            for name, allocated_bytes in found.items()
            if name not in self._foreign_names
        )
        self._last = found
        self.num_samples += 1
        self.bytes_max = max(self.bytes_max, steady_bytes)
        return steady_bytes
