"""Parsers of setting values: each takes what was said and the setting's name. Pure; thread-safe.

All raise ConfigError that names the setting and shows the value.
"""

import os
from collections.abc import Callable
from typing import Final, TypeAlias

from kvtier.errors import ConfigError
from kvtier.units import TIB, parse_bytes, parse_seconds, parse_whole_number, show

SettingValue: TypeAlias = int | float | bool | str | None
Parser: TypeAlias = Callable[[object, str], SettingValue]
AUTO: Final = "auto"
_NUMA_NODES_MAX: Final = 1024


def parse_boolean(value: object, name: str) -> bool:
    """Returns a bool from one, or from "true", "on", "yes", "1" and their opposites."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower() if isinstance(value, (str, int)) else ""
    if word in {"true", "on", "yes", "1"}:
        return True
    if word in {"false", "off", "no", "0"}:
        return False
    raise ConfigError(f"{name}: expected true or false, got {show(value)}")


def parse_path(value: object, name: str) -> str | None:
    """Returns a folder's path with "~" expanded; None and "" mean that there is none."""
    if value is None or value == "":
        return None
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else value
    if not isinstance(text, str):
        raise ConfigError(f"{name}: expected a path, got {show(value)} ({type(value).__name__})")
    if "\0" in text:
        raise ConfigError(f"{name}: a path cannot hold a NUL character: {show(text)}")
    return os.path.expanduser(text)


def make_size(minimum_bytes: int, is_auto_allowed: bool = False) -> Parser:
    """Returns a parser of sizes from `minimum_bytes` to 64 TiB, and of "auto" where allowed."""

    def parse(value: object, name: str) -> SettingValue:
        if is_auto_allowed and isinstance(value, str) and value.strip().lower() == AUTO:
            return AUTO
        size_bytes = parse_bytes(value, name)
        _check_range(size_bytes, minimum_bytes, 64 * TIB, name)
        return size_bytes

    return parse


def make_whole(minimum: int, maximum: int, is_auto_allowed: bool = False) -> Parser:
    """Returns a parser of whole numbers, and of "auto" where allowed."""

    def parse(value: object, name: str) -> SettingValue:
        if is_auto_allowed and isinstance(value, str) and value.strip().lower() == AUTO:
            return AUTO
        text = value.strip() if isinstance(value, str) else ""
        is_digits = text.isdecimal() and len(text) <= 20
        number = parse_whole_number(int(text) if is_digits else value, name)
        _check_range(number, minimum, maximum, name)
        return number

    return parse


def make_seconds(minimum_s: float, maximum_s: float) -> Parser:
    """Returns a parser of seconds."""

    def parse(value: object, name: str) -> SettingValue:
        seconds = parse_seconds(value, name)
        _check_range(seconds, minimum_s, maximum_s, name)
        return seconds

    return parse


def make_choice(*choices: str) -> Parser:
    """Returns a parser of words, in any case."""

    def parse(value: object, name: str) -> SettingValue:
        # YAML reads on and off as booleans.
        word = ("on" if value else "off") if isinstance(value, bool) else value
        if isinstance(word, str) and word.strip().lower() in choices:
            return word.strip().lower()
        raise ConfigError(f"{name}: expected one of {', '.join(choices)}; got {show(value)}")

    return parse


def parse_host(value: object, name: str) -> str:
    """Returns an address or a host's name; whether there is such a one shows when it is used."""
    text = value.strip() if isinstance(value, str) else ""
    if not text or not text.isascii() or any(it.isspace() or it in "/@" for it in text):
        raise ConfigError(f"{name}: expected an address such as 127.0.0.1, got {show(value)}")
    return text


def parse_numa(value: object, name: str) -> str:
    """Returns "auto", "off", "interleave", or nodes such as "0-1,3", which may not be there."""
    # YAML reads off as a boolean, and a single node as a number.
    word = "off" if value is False else value
    is_text = isinstance(word, str) or (isinstance(word, int) and not isinstance(word, bool))
    text = "".join(str(word).lower().split()) if is_text else ""
    if text in {AUTO, "off", "interleave"}:
        return text
    ranges = [it.partition("-") for it in text.split(",")]
    if all(_is_node_range(first, last if dash else first) for first, dash, last in ranges):
        return text
    raise ConfigError(
        f"{name}: expected auto, off, interleave, or nodes such as 0 or 0-1,3; got {show(value)}"
    )


def _is_node_range(first: str, last: str) -> bool:
    is_digits = all(it.isascii() and it.isdecimal() and len(it) <= 4 for it in (first, last))
    return is_digits and int(first) <= int(last) < _NUMA_NODES_MAX


def _check_range(value: float, minimum: float, maximum: float, name: str) -> None:
    if not minimum <= value <= maximum:
        raise ConfigError(f"{name}: {value} is not within {minimum} to {maximum}")
