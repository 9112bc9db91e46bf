"""Checks of a folder meant for the disk tier: whether it can be used, and what it lies on.

Tries the folder, or its nearest parent that exists, with temporary files. Stateless.
"""

from __future__ import annotations

import errno
import os
import tempfile
from dataclasses import dataclass
from typing import Final

from kvtier import _core
from kvtier.capacity import DISK_SHARE_PERCENT
from kvtier.cli.doctor.finding import Finding, Level
from kvtier.file_system import FileSystem, find_concerns
from kvtier.units import GIB, format_bytes

_FREE_BYTES_MIN: Final = GIB
_REMEDIES: Final = {
    errno.EROFS: "mount it read-write (mount -o remount,rw), or choose another folder",
    errno.ENOTDIR: "choose another path, or move the file away",
    errno.ENOENT: "make the folder that the symbolic link names, or choose another path",
    errno.ENOSPC: "free some space or inodes, or choose a folder on a larger disk",
    errno.EDQUOT: "raise this user's quota, or choose a folder on another disk",
    errno.EIO: "look at the disk with dmesg and smartctl; choose a folder on another disk",
    errno.ESTALE: "mount the network file system again; choose a folder on a local SSD",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedFolder:
    """Where a path leads: the folder that could be tried, and what came of it."""

    path: str
    folder: str
    """The path itself, or its nearest parent that exists."""
    error: OSError | None
    """Why no file can be made there; None where one could."""

    @property
    def is_there(self) -> bool:
        return os.path.abspath(self.path) == self.folder


def try_folder(path: str) -> TriedFolder:
    """Makes a nameless file in the folder, or where it would be made. Makes no folder."""
    folder = os.path.abspath(path)
    while not os.path.lexists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    error: OSError | None = None
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as refused:
        error = refused
    return TriedFolder(path=path, folder=folder, error=error)


def check_writable(tried: TriedFolder) -> Finding:
    """Whether the store can make its files there, and if not, which errno and what to do."""
    where = tried.path if tried.is_there else f"{tried.path} does not exist yet, {tried.folder}"
    if tried.error is None:
        return Finding(name="path", text=f"{where} is writable")
    code = tried.error.errno or 0
    name = errno.errorcode.get(code, str(code))
    what = "is not a folder" if code == errno.ENOTDIR else "cannot be written"
    return Finding(
        name="path",
        level=Level.FAIL,
        text=f"{where} {what}: {tried.error.strerror} ({name})",
        why="there is no disk tier: what host memory cannot hold is computed again",
        remedy=_REMEDIES.get(
            code, f"give this user (uid {os.geteuid()}) write access to {tried.folder}"
        ),
    )


def check_space(path: str, free_bytes: int) -> Finding:
    """Free space, and what disk_bytes=auto makes of it."""
    own_files = _core.list_own_files(path) if os.path.isdir(path) else []
    own_bytes = sum(allocated_bytes for _, allocated_bytes in own_files)
    auto_bytes = (own_bytes + free_bytes) * DISK_SHARE_PERCENT // 100
    is_enough = own_bytes + free_bytes >= _FREE_BYTES_MIN
    return Finding(
        name="space",
        level=Level.OK if is_enough else Level.WARN,
        text=f"{format_bytes(free_bytes)} free, {format_bytes(own_bytes)} kvtier's own; "
        f"disk_bytes=auto takes {format_bytes(auto_bytes)}",
        why="" if is_enough else "a few prompts fill the disk tier",
        remedy="" if is_enough else "free some space, or choose a folder on a larger disk",
    )


def check_file_system(path: str, found: FileSystem, block_bytes: int) -> list[Finding]:
    """The mount and the medium, and each thing that makes them a poor place.

    block_bytes: the file system's own.
    """
    kind = found.kind or "unknown kind"
    disks = f" ({', '.join(found.disks)}, {found.bus})" if found.disks else ""
    place = (
        f"{kind} at {found.mount_point}, medium {found.medium}{disks}, blocks of "
        f"{format_bytes(block_bytes)}"
    )
    findings = []
    for concern in find_concerns(path, found):
        text, _, remedy = concern.partition("; ")
        why = text.removeprefix(f"{path} ")
        findings.append(
            Finding(name="file system", level=Level.WARN, text=place, why=why, remedy=remedy)
        )
    if kind == "overlay":
        findings.append(
            Finding(
                name="file system",
                level=Level.WARN,
                text=place,
                why="the container's own layer: blocks are gone with the container",
                remedy="mount a volume: docker run -v DIR:/kvtier, an emptyDir or hostPath",
            )
        )
    if not findings and found.is_system_disk:
        findings.append(
            Finding(
                name="file system",
                level=Level.NOTE,
                text=f"{place}, the system disk",
                why="it shares speed, space and wear with the system",
                remedy="a data disk of its own, or a disk_bytes that leaves the system room",
            )
        )
    return findings or [Finding(name="file system", text=place)]


def check_direct(probe: _core.DirectoryProbe) -> Finding:
    """Whether a direct write and read back worked, and at what alignment."""
    error = probe["direct_write_error"]
    if error:
        return Finding(
            name="direct I/O",
            level=Level.WARN,
            text=f"does not work: {error}",
            why="loads go through the page cache: twice the memory, and spikes",
            remedy="use ext4 or xfs on a local disk",
        )
    source = "reported by statx" if probe["is_alignment_reported"] else "assumed"
    return Finding(
        name="direct I/O",
        text=f"works; alignment {probe['direct_alignment_offset_bytes']} bytes in the file, "
        f"{probe['direct_alignment_memory_bytes']} in memory ({source})",
    )


def check_fallocate(probe: _core.DirectoryProbe) -> Finding:
    """Whether space can be reserved ahead."""
    error = probe["fallocate_error"]
    if not error:
        return Finding(name="fallocate", text="works")
    return Finding(
        name="fallocate",
        level=Level.WARN,
        text=f"does not work: {error}",
        why="space is not reserved ahead: a full disk shows late, as failed writes",
        remedy="use ext4 or xfs",
    )
