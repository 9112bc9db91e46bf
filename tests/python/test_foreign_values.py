"""Values of other programs' files: sizes in GB, folders, shares."""

import pytest

from kvtier.errors import ConfigError
from kvtier.foreign_values import (
    parse_disk,
    parse_disk_folder,
    parse_gb,
    parse_gb_or_auto,
    parse_share,
)
from kvtier.units import GIB


@pytest.mark.parametrize(
    ("value", "size_bytes"),
    [
        ("5GB", 5 * 10**9),
        ("5GiB", 5 * GIB),
        # Without a unit LMCache multiplies by 1,024 three times.
        (5, 5 * GIB),
        (0.5, GIB // 2),
        ("0.5", GIB // 2),
        ("5", 5 * GIB),
        (0, 0),
        ("500GB", 500 * 10**9),
        ("64 MiB", 64 << 20),
    ],
)
def test_a_number_counts_gib_and_text_has_its_unit_k1(value: object, size_bytes: int) -> None:
    assert parse_gb(value, "size") == size_bytes
    assert parse_gb_or_auto(value, "size") == size_bytes


@pytest.mark.parametrize(
    "value",
    [
        *(-1, "-1", "-1GB", "abc", "5 gigs", "5G", "", True, None, [1]),
        *(float("nan"), float("inf"), 1e300, "1e300", 10**400),
    ],
)
def test_what_is_no_size_is_refused_by_name_k1(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^local: "):
        parse_gb(value, "local")


def test_auto_is_a_size_only_where_it_is_allowed() -> None:
    assert parse_gb_or_auto(" Auto ", "size") == "auto"
    with pytest.raises(ConfigError):
        parse_gb("auto", "size")


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        ("/mnt/nvme/kv", "/mnt/nvme/kv"),
        ("file:///mnt/nvme/kv", "/mnt/nvme/kv"),
        ("FILE:///mnt/nvme/kv/", "/mnt/nvme/kv/"),
        ("file://local/kv", "local/kv"),
        ("local/kv/", "local/kv/"),
        (" /mnt/with space ", "/mnt/with space"),
        ("/mnt/a%20b", "/mnt/a%20b"),
        (["file:///mnt/nvme"], "/mnt/nvme"),
        ("", None),
        ("file://", None),
    ],
)
def test_a_folder_is_a_path_or_a_file_url(value: object, folder: str | None) -> None:
    assert parse_disk_folder(value, "local_disk") == folder


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("s3://bucket/kv", "local folder"),
        ("redis://host:1", "local folder"),
        ("/mnt/a,/mnt/b", "2 folders"),
        (["/mnt/a", "/mnt/b"], "2 folders"),
        (5, "file:// URL"),
        ("a\0b", "NUL"),
    ],
)
def test_what_is_no_one_folder_is_refused(value: object, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        parse_disk_folder(value, "local_disk")


@pytest.mark.parametrize(
    ("value", "disk"),
    [(True, True), ("true", True), ("No", False), (False, False), ("/true", "/true"), ("", None)],
)
def test_a_disk_is_a_folder_or_whether_there_is_one(value: object, disk: object) -> None:
    assert parse_disk(value, "local_disk") is disk or parse_disk(value, "local_disk") == disk


@pytest.mark.parametrize(
    ("value", "share"), [(0.3, 0.3), ("30%", 0.3), ("30 %", 0.3), ("0.3", 0.3), (0, 0), (1, 1)]
)
def test_a_share_is_a_number_or_percent(value: object, share: float) -> None:
    assert parse_share(value, "ratio") == share


@pytest.mark.parametrize("value", [30, -0.1, "130%", "-1%", "%", "", "abc", True, None, [0.3]])
def test_what_is_no_share_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^ratio: expected a share"):
        parse_share(value, "ratio")
