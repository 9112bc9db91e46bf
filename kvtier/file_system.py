"""What kind of file system and medium a path lies on, and what is wrong with that for a disk tier.

Reads /proc and /sys at each call; thread-safe.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvtier.machine import unescape_mount_field

_MEMORY_KINDS: Final = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
_NETWORK_KINDS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs"}
    | {"9p", "afs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.juicefs"}
)
# They take O_DIRECT and go through the page cache all the same, at least for some files.
_CACHING_KINDS: Final = frozenset({"ecryptfs", "btrfs", "zfs", "bcachefs", "fuse.encfs"})
_SHORT_LIVED_FOLDERS: Final = ("/tmp", "/var/tmp")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """The mount that a path lies on."""

    kind: str
    """As the kernel names it: "ext4", "xfs", "tmpfs", "nfs4", "overlay", ...; "" when unknown."""
    mount_point: str
    is_system_disk: bool
    """The same mount as that of "/"."""
    is_rotational: bool | None
    """What the kernel says of the disk beneath; None where it does not say."""

    @property
    def medium(self) -> str:
        """Returns "memory", "network", "hdd", "ssd" or "unknown"."""
        if self.kind in _MEMORY_KINDS:
            return "memory"
        if self.kind in _NETWORK_KINDS:
            return "network"
        if self.is_rotational is None:
            return "unknown"
        return "hdd" if self.is_rotational else "ssd"


def find_file_system(
    path: str | os.PathLike[str], proc: Path = Path("/proc"), sys: Path = Path("/sys")
) -> FileSystem:
    """Returns the file system of `path`, or of its nearest parent that exists."""
    existing = Path(os.path.abspath(path))
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    real = os.path.realpath(existing)
    best = ("", "/", "")
    root_device = ""
    try:
        text = (proc / "self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        text = ""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or not kinds:
            continue
        mount_point = unescape_mount_field(fields[4])
        # The last mount on a point hides the earlier ones.
        if mount_point == "/":
            root_device = fields[2]
        if _is_below(real, mount_point) and len(mount_point) >= len(best[1]):
            best = (kinds[0], mount_point, fields[2])
    kind, mount_point, device = best
    return FileSystem(
        kind=kind,
        mount_point=mount_point,
        is_system_disk=bool(device) and device == root_device,
        is_rotational=_is_rotational(existing, sys),
    )


def find_concerns(path: str | os.PathLike[str], file_system: FileSystem) -> list[str]:
    """Returns sentences on what makes `path` a poor place for a disk tier, with the remedy."""
    concerns = []
    medium = file_system.medium
    if medium == "memory":
        concerns.append(
            f"{os.fspath(path)} is a {file_system.kind}: the disk tier takes memory there and is "
            "lost with it; choose a folder on a local SSD"
        )
    if medium == "network":
        concerns.append(
            f"{os.fspath(path)} is on a network file system ({file_system.kind}): loads wait for "
            "the network; choose a folder on a local SSD"
        )
    if file_system.kind in _CACHING_KINDS:
        concerns.append(
            f"{os.fspath(path)} is on {file_system.kind}, which may turn direct I/O into buffered "
            "without saying so: blocks then fill the page cache too; choose ext4 or xfs"
        )
    if medium == "hdd":
        concerns.append(
            f"{os.fspath(path)} is on a rotating disk: loads are likely to be slower than "
            "computing again; choose a folder on a local SSD"
        )
    real = os.path.realpath(path)
    if file_system.is_system_disk and any(_is_below(real, it) for it in _SHORT_LIVED_FOLDERS):
        concerns.append(
            f"{os.fspath(path)} is a temporary folder of the system disk: it may be cleaned at "
            "any time and shares its speed with the system; choose a folder on a data disk"
        )
    return concerns


def _is_below(path: str, folder: str) -> bool:
    return folder == "/" or path == folder or path.startswith(folder.rstrip("/") + "/")


def _is_rotational(existing: Path, sys: Path) -> bool | None:
    try:
        device = existing.stat().st_dev
    except OSError:
        return None
    node = sys / "dev/block" / f"{os.major(device)}:{os.minor(device)}"
    real = os.path.realpath(node)
    # A partition has no queue of its own: its disk's is one folder up.
    for folder in (node, Path(real).parent):
        try:
            is_rotational = (folder / "queue/rotational").read_text(encoding="ascii").strip() == "1"
        except OSError:
            continue
        # Virtual disks say that they rotate whatever lies beneath.
        is_virtual = "/virtio" in real or "/vbd-" in real
        return None if is_rotational and is_virtual else is_rotational
    return None
