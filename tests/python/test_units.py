"""Sizes and times with units."""

import numpy as np
import pytest

from kvtier.errors import ConfigError
from kvtier.units import GIB, MIB, format_bytes, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("value", "size_bytes"),
    [
        ("64MiB", 64 * MIB),
        ("8GiB", 8 * GIB),
        ("64GB", 64 * 10**9),
        ("5GB", 5 * 10**9),
        ("5GiB", 5 * GIB),
        ("0.5GiB", GIB // 2),
        ("0.3GiB", 322122547),
        (" 5 GiB ", 5 * GIB),
        ("5gib", 5 * GIB),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("2TiB", 2 << 40),
        ("917B", 917),
        ("917", 917),
        ("917.0", 917),
        ("0", 0),
        (0, 0),
        (1 << 62, 1 << 62),
        (np.int32(7), 7),
        (np.uint64(7), 7),
    ],
)
def test_a_size_is_read_k1(value: object, size_bytes: int) -> None:
    assert parse_bytes(value) == size_bytes


@pytest.mark.parametrize(
    ("value", "part_of_message"),
    [
        ("-1", "negative"),
        (-1, "negative"),
        ("-5GiB", "negative"),
        ("abc", "expected a size"),
        ("5 gigs", "5GiB"),
        ("64M", "64MiB"),
        ("5G", "5GB"),
        ("5x", "known are"),
        ("0.5", "no unit"),
        ("", "expected a size"),
        ("GiB", "expected a size"),
        ("1e9", "expected a size"),
        ("1_000", "expected a size"),
        ("0x10", "expected a size"),
        ("nan", "expected a size"),
        ("1..5GiB", "expected a size"),
        ("0.1B", "less than one byte"),
        ("9" * 100, "expected a size"),
        ("99999999999TiB", "beyond"),
        (1 << 63, "beyond"),
        (True, "bool"),
        (1.5, "float"),
        (float("nan"), "float"),
        (None, "NoneType"),
        ([1], "list"),
        (b"5GiB", "bytes"),
    ],
)
def test_a_size_that_is_not_clear_is_refused_k1(value: object, part_of_message: str) -> None:
    with pytest.raises(ConfigError, match="host_bytes") as caught:
        parse_bytes(value, "host_bytes")
    assert part_of_message in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_refused_text_cannot_break_the_message() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_bytes("5\n\x1b[31m" + "x" * 10_000_000)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (917, "917 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (64 * MIB, "64 MiB"),
        (64 * 10**9, "59.6 GiB"),
        (1 << 40, "1 TiB"),
        ((1 << 30) - 1, "1023.99 MiB"),
    ],
)
def test_a_size_is_shown(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize("value", [0, 1.5, "30", np.float32(2), float("inf")])
def test_a_time_is_read(value: object) -> None:
    assert parse_seconds(value) == float(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1, float("nan"), "nan", "-0.5", "soon", True, None, [1], b"1"])
def test_a_time_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="timeout_s"):
        parse_seconds(value, "timeout_s")
