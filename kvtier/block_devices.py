"""The whole disks beneath a mount, and how they are attached: by what sysfs says.

Reads /sys at each call; thread-safe. Paths that are returned are folders of sysfs.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Mappings on mappings end here at the latest: a loop of slaves would else never end.
_DEPTH_MAX: Final = 8
_ATA_PART: Final = re.compile(r"ata\d+")
_USB_PART: Final = re.compile(r"usb\d+")


def find_disks(device: int, source: str, sys: Path = Path("/sys")) -> list[Path]:
    """Returns the disks beneath device number `device`, or beneath `source` of the mount.

    source: counts where the number is not that of a block device, as on btrfs and zfs. Mappings
    (LVM, RAID, encryption) are followed down, partitions up; each disk stands there once.
    """
    node = sys / "dev/block" / f"{os.major(device)}:{os.minor(device)}"
    if not node.exists() and source.startswith("/dev/"):
        node = sys / "class/block" / os.path.basename(os.path.realpath(source))
    if not node.exists():
        return []
    return list(dict.fromkeys(_disks_beneath(Path(os.path.realpath(node)), _DEPTH_MAX)))


def find_bus(disk: Path) -> str:
    """Returns "nvme", "sata", "usb", "mmc", "virtual" (of a hypervisor) or "unknown"."""
    if disk.name.startswith("nvme"):
        return "nvme"
    if disk.name.startswith("mmcblk"):
        return "mmc"
    parts = disk.parts
    if any(part.startswith(("virtio", "vbd-")) for part in parts):
        return "virtual"
    if any(_USB_PART.fullmatch(part) for part in parts):
        return "usb"
    return "sata" if any(_ATA_PART.fullmatch(part) for part in parts) else "unknown"


def is_rotational(disk: Path) -> bool | None:
    """Returns what the kernel says; None where it says nothing, or nothing to be trusted."""
    try:
        text = (disk / "queue/rotational").read_text(encoding="ascii").strip()
    except OSError:
        return None
    # Virtual disks say that they rotate whatever lies beneath.
    if text == "1" and find_bus(disk) == "virtual":
        return None
    return text == "1"


def _disks_beneath(node: Path, depth: int) -> Iterator[Path]:
    slaves = sorted((node / "slaves").iterdir()) if (node / "slaves").is_dir() else []
    if slaves and depth > 0:
        for slave in slaves:
            yield from _disks_beneath(Path(os.path.realpath(slave)), depth - 1)
    elif (node / "partition").exists():
        # A mapping may lie on a partition, whose disk is one folder up.
        yield from _disks_beneath(node.parent, depth - 1) if depth > 0 else ()
    else:
        yield node
