"""Small files of /proc and /sys, and the processes that /proc lists.

Reads at each call; thread-safe. What cannot be read counts as empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def read_text(path: Path) -> str:
    """Returns the file without blanks around it; "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def read_choice(path: Path) -> str:
    """Returns the word in brackets of a file such as "always [madvise] never"; "" if none is."""
    _, _, rest = read_text(path).partition("[")
    return rest.partition("]")[0]


def list_process_folders(proc: Path) -> Iterator[Path]:
    """Yields the folder of each process that may be seen."""
    try:
        names = sorted(it.name for it in proc.iterdir() if it.name.isdecimal())
    except OSError:
        return
    for name in names:
        yield proc / name
