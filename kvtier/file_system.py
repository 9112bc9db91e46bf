"""What kind of file system and medium a path lies on, and what is wrong with that for a disk tier.

Reads /proc and /sys at each call; thread-safe.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvtier.block_devices import find_bus, find_disks, is_rotational
from kvtier.machine import unescape_mount_field

_MEMORY_KINDS: Final = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
_NETWORK_KINDS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs"}
    | {"9p", "afs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.juicefs"}
)
# They take O_DIRECT and go through the page cache all the same, at least for some files.
_CACHING_KINDS: Final = frozenset({"ecryptfs", "btrfs", "zfs", "bcachefs", "fuse.encfs"})
# From fast to slow; of several disks the slowest counts.
_BUSES: Final = ("unknown", "virtual", "nvme", "sata", "usb", "mmc")
_BUS_GB_PER_S: Final = {"sata": 0.55, "usb": 1.0, "mmc": 0.3}
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
    """What the kernel says of the disks beneath; None where it does not say."""
    disks: tuple[str, ...] = ()
    """Kernel names of the whole disks beneath: "nvme0n1", "sda"; none when they are not known."""
    bus: str = "unknown"
    """The slowest of how they are attached: "nvme", "sata", "usb", "mmc", "virtual", "unknown"."""

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
    # Not Path.exists, which raises where a parent may not be searched.
    while not os.path.exists(existing) and existing != existing.parent:
        existing = existing.parent
    real = os.path.realpath(existing)
    best = ("", "/", "", "")
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
            best = (kinds[0], mount_point, fields[2], kinds[1] if len(kinds) > 1 else "")
    kind, mount_point, device, source = best
    disks = _disks_of(existing, source, sys)
    return FileSystem(
        kind=kind,
        mount_point=mount_point,
        is_system_disk=bool(device) and device == root_device,
        is_rotational=_is_any_rotational(disks),
        disks=tuple(disk.name for disk in disks),
        bus=max((find_bus(disk) for disk in disks), key=_BUSES.index, default="unknown"),
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
    elif file_system.bus in _BUS_GB_PER_S:
        concerns.append(
            f"{os.fspath(path)} is on a disk behind {file_system.bus.upper()}, which reads at most "
            f"about {_BUS_GB_PER_S[file_system.bus]} GB/s: loads may be slower than computing "
            "again; choose a folder on an NVMe disk"
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


def _disks_of(existing: Path, source: str, sys: Path) -> list[Path]:
    try:
        device = existing.stat().st_dev
    except OSError:
        return []
    return find_disks(device, unescape_mount_field(source), sys)


def _is_any_rotational(disks: list[Path]) -> bool | None:
    """None unless it is known of all: of a mirror the slower disk counts."""
    answers = [is_rotational(disk) for disk in disks]
    if True in answers:
        return True
    return None if None in answers or not answers else False
