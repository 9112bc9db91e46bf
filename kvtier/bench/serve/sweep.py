"""One thing that is varied, the rest staying as it is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtier.errors import ConfigError

CONCURRENCY = "concurrency"
INPUT_TOKENS = "input-tokens"
IO_THREADS = "io-threads"
DEVICE_SHARE = "device-share"
AXES = (CONCURRENCY, INPUT_TOKENS, IO_THREADS, DEVICE_SHARE)
RESTARTING_AXES = (IO_THREADS, DEVICE_SHARE)
"""What an engine takes at its start only."""
_VALUES_MAX = 32


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """An axis and its values in the order in which they are measured."""

    axis: str
    values: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """Reads "concurrency=1,8,64". Raises ConfigError that names what is wrong."""
        axis, _, listed = text.partition("=")
        if axis not in AXES:
            raise ConfigError(f"sweep: unknown axis {axis!r}; there are {', '.join(AXES)}")
        values = tuple(_parse_value(axis, it) for it in listed.split(",") if it.strip())
        if len(values) < 2:
            raise ConfigError(f"sweep: {text!r} has fewer than two values; write {axis}=A,B,…")
        if len(set(values)) < len(values):
            raise ConfigError(f"sweep: {text!r} names a value twice")
        if len(values) > _VALUES_MAX:
            raise ConfigError(f"sweep: {len(values)} values are more than {_VALUES_MAX}")
        return cls(axis=axis, values=values)

    @property
    def is_restarting(self) -> bool:
        return self.axis in RESTARTING_AXES

    def check(self, *, modes: Sequence[str], has_urls: bool, num_sessions: int) -> None:
        """Raises ConfigError for a sweep that would measure the same thing at each value."""
        if self.is_restarting and has_urls:
            raise ConfigError(
                f"sweep: {self.axis} is set when vLLM starts, and --url names servers that run; "
                "leave --url out, or sweep concurrency or input-tokens"
            )
        if self.axis == IO_THREADS and not set(modes) & {"disk", "hybrid"}:
            raise ConfigError(
                f"sweep: io-threads read and write a disk, and none of the modes "
                f"{', '.join(modes)} has one; add disk or hybrid"
            )
        if self.axis == CONCURRENCY and max(self.values) > num_sessions:
            raise ConfigError(
                f"sweep: concurrency {max(self.values):g} cannot be reached with {num_sessions} "
                "requests at once; raise --prompts"
            )


def format_value(axis: str, value: float) -> str:
    return f"{value:.0%}" if axis == DEVICE_SHARE else f"{value:g}"


def _parse_value(axis: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if axis == DEVICE_SHARE:
        if not 0 < value <= 1:
            raise ConfigError(f"sweep: {axis} is a share above 0, up to 1, got {text.strip()!r}")
    elif not 1 <= value <= 1 << 20 or value != int(value):
        raise ConfigError(f"sweep: {axis} is a whole number from 1 up, got {text.strip()!r}")
    return value
