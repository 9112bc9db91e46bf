"""Sizes and times with units: text to numbers and back, refusing whatever is ambiguous.

Pure functions; thread-safe.
"""

import contextlib
import math
import operator
import re
from decimal import Decimal
from typing import Final, SupportsFloat, SupportsIndex, cast

from kvtier.errors import ConfigError

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40
SIZE_BYTES_MAX: Final = (1 << 63) - 1
# Asked first: whether something is like a number takes ten microseconds to find out.
_PLAIN_NUMBERS: Final = (float, int)

_UNIT_BYTES: Final = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
}
_SIZE_TEXT: Final = re.compile(r"\s*([+-]?[0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_SHOWN_CHARACTERS_MAX: Final = 80


def parse_bytes(value: object, name: str = "size") -> int:
    """Returns a size in bytes from an int, or from text such as "64MiB", "0.5GiB" or "64GB".

    KiB, MiB, GiB and TiB are powers of 1,024; kB, MB, GB and TB are powers of 1,000. Raises
    ConfigError that starts with `name`.
    """
    if isinstance(value, str):
        size_bytes = _parse_size_text(value, name)
    else:
        size_bytes = parse_whole_number(value, name, expected='bytes, or text such as "64MiB"')
    if size_bytes < 0:
        raise ConfigError(f"{name}: a size cannot be negative, got {show(value)}")
    if size_bytes > SIZE_BYTES_MAX:
        raise ConfigError(f"{name}: {show(value)} is beyond {SIZE_BYTES_MAX} bytes")
    return size_bytes


def parse_whole_number(value: object, name: str, expected: str = "a whole number") -> int:
    """Returns an int from anything that is an integer by type; bool and float are not."""
    if not isinstance(value, bool) and isinstance(value, SupportsIndex):
        return operator.index(value)
    raise ConfigError(f"{name}: expected {expected}, got {show(value)} ({type(value).__name__})")


def parse_seconds(value: object, name: str = "time") -> float:
    """Returns seconds from a number or its text; negative, NaN and bool are refused."""
    seconds = math.nan
    if type(value) in _PLAIN_NUMBERS:
        seconds = float(cast("float", value))
    elif isinstance(value, (str, SupportsFloat)) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            seconds = float(value)
    if math.isnan(seconds):
        raise ConfigError(f"{name}: expected seconds, got {show(value)}")
    if seconds < 0:
        raise ConfigError(f"{name}: a time cannot be negative, got {show(value)}")
    return seconds


def format_bytes(size_bytes: int) -> str:
    """Returns a short text in binary units, for people: "64 MiB", "1.5 GiB", "917 B"."""
    for unit_bytes, unit in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes >= unit_bytes:
            # Rounded down, so that a shown limit is never above the real one.
            hundredths = size_bytes * 100 // unit_bytes
            number = f"{hundredths // 100}.{hundredths % 100:02d}".rstrip("0").rstrip(".")
            return f"{number} {unit}"
    return f"{size_bytes} B"


def show(value: object) -> str:
    """Returns a value as it may stand in a message: escaped and bounded."""
    text = repr(value[: _SHOWN_CHARACTERS_MAX + 1]) if isinstance(value, str) else repr(value)
    if len(text) > _SHOWN_CHARACTERS_MAX:
        return text[:_SHOWN_CHARACTERS_MAX] + "…"
    return text


def _parse_size_text(text: str, name: str) -> int:
    match = _SIZE_TEXT.fullmatch(text) if len(text) <= _SHOWN_CHARACTERS_MAX else None
    if match is None:
        raise ConfigError(f'{name}: expected a size such as "64MiB" or "8GiB", got {show(text)}')
    number, unit = Decimal(match[1]), match[2]
    unit_bytes = _UNIT_BYTES.get(unit.lower() or "b")
    if unit_bytes is None:
        raise ConfigError(f"{name}: unknown unit in {show(text)}; {_near_unit(match[1], unit)}")
    size = number * unit_bytes
    size_bytes = int(size)
    if not unit and size != size_bytes:
        raise ConfigError(f"{name}: {show(text)} has no unit; write for example {match[1]}GiB")
    if size > 0 and size_bytes == 0:
        raise ConfigError(f"{name}: {show(text)} is less than one byte")
    return size_bytes


def _near_unit(number: str, unit: str) -> str:
    letter = unit[:1].upper()
    if letter in {"K", "M", "G", "T"}:
        return f"write {number}{letter}iB (powers of 1,024) or {number}{letter}B (powers of 1,000)"
    return "known are B, kB, MB, GB, TB, KiB, MiB, GiB and TiB"
