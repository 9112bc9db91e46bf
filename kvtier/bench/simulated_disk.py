"""Another disk on paper, under the real store: "rate=50MB/s,latency=1ms,depth=1". Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtier.errors import ConfigError
from kvtier.units import parse_bytes

if TYPE_CHECKING:
    from kvtier._core import SimulatedDisk as CoreSimulatedDisk

_TIMES_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_NAMES = ("rate", "read_rate", "write_rate", "latency", "depth")
_GB = 1e9


@dataclass(frozen=True, kw_only=True)
class PaperDisk:
    """Bytes a second of each direction, seconds of each op, ops at once; 0: no limit."""

    read_bytes_per_s: int = 0
    write_bytes_per_s: int = 0
    latency_s: float = 0.0
    queue_depth_max: int = 0

    def gb_per_s(self, *, is_write: bool, op_bytes: int, depth: int) -> float:
        """What this disk can do at most with ops of that size, `depth` of them at once."""
        rate = self.write_bytes_per_s if is_write else self.read_bytes_per_s
        num_ops = min(depth, self.queue_depth_max) if self.queue_depth_max else depth
        op_s = (op_bytes / rate if rate else 0.0) + self.latency_s
        by_latency = num_ops * op_bytes / op_s if op_s else float("inf")
        return min(rate or float("inf"), by_latency) / _GB

    def core_option(self) -> CoreSimulatedDisk:
        return {
            "read_bytes_per_s": self.read_bytes_per_s,
            "write_bytes_per_s": self.write_bytes_per_s,
            "latency_s": self.latency_s,
            "queue_depth_max": self.queue_depth_max,
        }


def parse_paper_disk(text: str) -> PaperDisk:
    """Reads "name=value,…": rate, read_rate, write_rate (bytes a second), latency, depth.

    Raises ConfigError. At least one rate is needed: without it nothing could be compared.
    """
    values: dict[str, str] = {}
    for item in text.split(","):
        name, separator, value = item.strip().partition("=")
        if not separator or name not in _NAMES or name in values:
            raise ConfigError(
                f"simulate: expected {', '.join(f'{it}=…' for it in _NAMES)}, each once; "
                f"got {item.strip()!r}"
            )
        values[name] = value.strip()
    rate = _parse_rate(values.get("rate", "0"))
    disk = PaperDisk(
        read_bytes_per_s=_parse_rate(values["read_rate"]) if "read_rate" in values else rate,
        write_bytes_per_s=_parse_rate(values["write_rate"]) if "write_rate" in values else rate,
        latency_s=_parse_time_s(values.get("latency", "0s")),
        queue_depth_max=_parse_depth(values.get("depth", "0")),
    )
    if not disk.read_bytes_per_s or not disk.write_bytes_per_s:
        raise ConfigError("simulate: a rate is needed, such as rate=50MB/s")
    return disk


def _parse_rate(text: str) -> int:
    return parse_bytes(text.removesuffix("/s"), "simulate: rate")


def _parse_time_s(text: str) -> float:
    found = re.fullmatch(r"([0-9.]+)\s*(us|ms|s)", text)
    try:
        if found:
            return float(found[1]) * _TIMES_S[found[2]]
    except ValueError:
        pass
    raise ConfigError(f"simulate: latency: expected a time such as 200us or 1ms; got {text!r}")


def _parse_depth(text: str) -> int:
    if not text.isdecimal() or int(text) > 65536:
        raise ConfigError(f"simulate: depth: expected 0 to 65536; got {text!r}")
    return int(text)
