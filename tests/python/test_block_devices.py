"""The disks beneath a mount and how they are attached, from invented sysfs trees."""

import os
from pathlib import Path

import pytest

from kvtier.block_devices import find_bus, find_disks, is_rotational

NVME = "devices/pci0000:00/0000:02:00.0/nvme/nvme0/nvme0n1"
SATA = "devices/pci0000:00/0000:00:17.0/ata3/host2/target2:0:0/2:0:0:0/block/sdb"
USB = "devices/pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0/block/sdc"
VIRTUAL = "devices/pci0000:00/0000:00:04.0/virtio2/block/vda"
DEVICE = os.makedev(259, 3)


def make_disk(sys: Path, name: str, *, rotational: str = "0") -> Path:
    disk = sys / name
    (disk / "queue").mkdir(parents=True)
    (disk / "queue/rotational").write_text(rotational + "\n")
    return disk


def make_partition(disk: Path, name: str) -> Path:
    (disk / name).mkdir()
    (disk / name / "partition").write_text("1\n")
    return disk / name


def link(sys: Path, name: str, target: Path) -> None:
    (sys / name).parent.mkdir(parents=True, exist_ok=True)
    (sys / name).symlink_to(target)


@pytest.mark.parametrize(
    ("name", "bus"), [(NVME, "nvme"), (SATA, "sata"), (USB, "usb"), (VIRTUAL, "virtual")]
)
def test_a_partition_leads_to_its_disk_and_its_bus(tmp_path: Path, name: str, bus: str) -> None:
    disk = make_disk(tmp_path, name)
    link(tmp_path, "dev/block/259:3", make_partition(disk, "p1"))
    assert find_disks(DEVICE, "", tmp_path) == [disk]
    assert find_bus(disk) == bus
    assert is_rotational(disk) is False


def test_a_mapping_of_a_mirror_leads_to_both_disks_once(tmp_path: Path) -> None:
    disks = [make_disk(tmp_path, NVME), make_disk(tmp_path, SATA, rotational="1")]
    mapping = tmp_path / "devices/virtual/block/dm-0"
    for index, disk in enumerate([*disks, disks[0]]):
        link(mapping, f"slaves/{index}", make_partition(disk, f"p{index}"))
    link(tmp_path, "dev/block/259:3", mapping)
    assert find_disks(DEVICE, "", tmp_path) == disks
    assert [is_rotational(disk) for disk in disks] == [False, True]


def test_a_file_system_without_device_number_is_found_by_its_source(tmp_path: Path) -> None:
    disk = make_disk(tmp_path, NVME)
    link(tmp_path, "class/block/of-btrfs", make_partition(disk, "p2"))
    assert find_disks(os.makedev(0, 44), "/dev/of-btrfs", tmp_path) == [disk]
    assert find_disks(os.makedev(0, 44), "server:/export", tmp_path) == []


def test_mappings_in_a_circle_come_to_an_end(tmp_path: Path) -> None:
    mapping = tmp_path / "devices/virtual/block/dm-0"
    link(mapping, "slaves/dm-0", mapping)
    link(tmp_path, "dev/block/259:3", mapping)
    assert find_disks(DEVICE, "", tmp_path) == [mapping]


def test_a_virtual_disk_that_claims_to_rotate_is_not_believed(tmp_path: Path) -> None:
    assert is_rotational(make_disk(tmp_path, VIRTUAL, rotational="1")) is None
    assert is_rotational(tmp_path / "missing") is None
