"""A store's folder from outside: that it exists, and who holds it. Stateless."""

import os
from pathlib import Path
from typing import Final

from kvtier.errors import ConfigError
from kvtier.units import show

_LOCK_FILE_NAME: Final = "kvtier.lock"
_LOCK_TEXT_BYTES_MAX: Final = 4096


def require_folder(path: str) -> str:
    """Returns `path`. Raises ConfigError unless it is a folder: looking must not make one."""
    if not os.path.isdir(path):
        kind = "is not a folder" if os.path.lexists(path) else "does not exist"
        raise ConfigError(f"path: {show(path)} {kind}")
    return path


def find_holder(path: str, proc: Path = Path("/proc")) -> str | None:
    """Returns who holds the folder's lock now, or None. Takes no lock itself."""
    lock_path = os.path.join(path, _LOCK_FILE_NAME)
    try:
        inode = os.stat(lock_path).st_ino
        locks = (proc / "locks").read_text(encoding="ascii", errors="replace")
        with open(lock_path, "rb") as file:
            text = file.read(_LOCK_TEXT_BYTES_MAX).decode("utf-8", "replace").strip()
    except OSError:
        return None
    for line in locks.splitlines():
        words = line.split()
        # "1: FLOCK ADVISORY WRITE <pid> <major>:<minor>:<inode> 0 EOF". The device is left out of
        # the comparison: layered file systems show another one here than stat does.
        if len(words) >= 6 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode):
            return text or f"pid {words[4]}"
    return None


def list_held_folders(proc: Path = Path("/proc")) -> list[str]:
    """Returns the folders of stores that are open now, of processes that this user may look into.

    Sorted; folders that this process cannot reach by that name (of containers) are left out.
    """
    folders = set()
    for descriptors in proc.glob("[0-9]*/fd"):
        try:
            links = [os.readlink(it) for it in descriptors.iterdir()]
        except OSError:
            continue  # Another user's, or it ended meanwhile.
        folders |= {
            os.path.dirname(link) for link in links if os.path.basename(link) == _LOCK_FILE_NAME
        }
    return sorted(it for it in folders if os.path.isdir(it) and find_holder(it, proc) is not None)


def choose_folder(path: str | None) -> str:
    """Returns `path`, else the folder that KVTIER_PATH names, else that of the only open store.

    Raises ConfigError when that leaves none or several.
    """
    named = path or os.environ.get("KVTIER_PATH")
    if named:
        return require_folder(os.path.expanduser(named))
    held = list_held_folders()
    if len(held) == 1:
        return held[0]
    found = f"{len(held)} stores are open: {', '.join(held)}" if held else "no store is open"
    raise ConfigError(f"path: which store? {found}; give its folder, or set KVTIER_PATH")
