"""Checks of the small arguments that many calls share. Pure functions; thread-safe."""

import operator
from typing import SupportsIndex

from kvtier.errors import ConfigError, UsageError
from kvtier.units import parse_seconds, show


def check_timeout_s(timeout_s: object, default_s: float, name: str = "timeout_s") -> float:
    """Returns seconds from now until the deadline; None means `default_s`. May be infinite."""
    return default_s if timeout_s is None else check_seconds(timeout_s, name)


def check_seconds(value: object, name: str) -> float:
    """Returns a duration ≥ 0. Raises UsageError (negative, NaN, not a number)."""
    if isinstance(value, str):
        raise UsageError(f"{name}: expected seconds as a number, got {show(value)}")
    try:
        return parse_seconds(value, name)
    except ConfigError as error:
        raise UsageError(str(error)) from None


def check_count(value: object, name: str) -> int:
    """Returns a whole number ≥ 0. Raises UsageError."""
    if (
        not isinstance(value, bool)
        and isinstance(value, SupportsIndex)
        and operator.index(value) >= 0
    ):
        return operator.index(value)
    raise UsageError(f"{name}: expected a whole number from 0 on, got {show(value)}")


def check_flag(value: object, name: str) -> bool:
    """Returns a bool. Raises UsageError (anything else: "no" would be true)."""
    if isinstance(value, bool):
        return value
    raise UsageError(f"{name}: expected True or False, got {show(value)}")
