"""Checks of the small arguments that many calls share. Pure functions; thread-safe."""

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


def check_flag(value: object, name: str) -> bool:
    """Returns a bool. Raises UsageError (anything else: "no" would be true)."""
    if isinstance(value, bool):
        return value
    raise UsageError(f"{name}: expected True or False, got {show(value)}")
