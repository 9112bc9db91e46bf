"""How large the tiers become: what "auto" means here, and whether the sizes fit this machine.

Pure functions over plain values; thread-safe.
"""

import os
from dataclasses import dataclass
from typing import Final

from kvtier.config import Config
from kvtier.errors import ConfigError
from kvtier.machine import MemoryLimit
from kvtier.setting_parsers import AUTO
from kvtier.units import format_bytes

HOST_SHARE_PERCENT: Final = 20
DISK_SHARE_PERCENT: Final = 80
# One sixteenth of the limit is left to the process itself and to the kernel.
_RESERVE_DIVISOR: Final = 16
PREFAULT_BYTES_MAX: Final = 320 << 20
_PREFAULT_DIVISOR: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """Space in and around a store's folder."""

    own_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Sizes in bytes, with a sentence for each that was chosen by kvtier."""

    host_bytes: int
    staging_bytes: int
    disk_bytes: int
    prefault_bytes: int
    """Memory of host tier and staging that is provided ahead of its use."""
    notes: dict[str, str]
    warnings: tuple[str, ...] = ()


def resolve_capacity(
    config: Config, limit: MemoryLimit, space: DiskSpace | None, unified_gpu: str | None = None
) -> Capacity:
    """Returns the sizes in effect. `space` is None when there is no disk tier.

    unified_gpu: the GPU that is known to use the machine's memory.

    Raises ConfigError that shows need, have, reserve and where the limit stands.
    """
    notes: dict[str, str] = {}
    staging_bytes = 0 if space is None else _known_bytes(config.staging_bytes)
    reserve_bytes = limit.limit_bytes // _RESERVE_DIVISOR
    fitting_bytes = max(0, limit.limit_bytes - reserve_bytes - staging_bytes)
    if config.host_bytes == AUTO and space is not None and _is_memory_unified(config, unified_gpu):
        host_bytes = 0
        whose = "unified=on" if config.unified == "on" else f"its memory is that of {unified_gpu}"
        notes["host_bytes"] = f"{whose}: a host tier would hold what the GPU holds"
    elif config.host_bytes == AUTO:
        host_bytes = min(limit.limit_bytes * HOST_SHARE_PERCENT // 100, fitting_bytes)
        notes["host_bytes"] = f"{HOST_SHARE_PERCENT} % of {limit}"
    else:
        host_bytes = _known_bytes(config.host_bytes)
    need_bytes = host_bytes + staging_bytes
    if need_bytes > limit.limit_bytes - reserve_bytes:
        too_large = "host_bytes" if host_bytes else "staging_bytes"
        raise ConfigError(
            f"{too_large} does not fit into memory: need {need_bytes} bytes (host_bytes "
            f"{host_bytes} + staging_bytes {staging_bytes}), have {limit.limit_bytes} bytes "
            f"({limit.kind} in {limit.path}), reserve {reserve_bytes} bytes for the process and "
            f"the kernel; host_bytes can be at most {fitting_bytes}"
        )
    if space is None:
        disk_bytes = 0
        notes |= dict.fromkeys(("staging_bytes", "disk_bytes"), "there is no disk tier")
    else:
        disk_bytes = _resolve_disk_bytes(config, space, notes)
    return Capacity(
        host_bytes=host_bytes,
        staging_bytes=staging_bytes,
        disk_bytes=disk_bytes,
        # A tier may stay empty, and a small machine needs its memory for others.
        prefault_bytes=min(PREFAULT_BYTES_MAX, limit.limit_bytes // _PREFAULT_DIVISOR),
        notes=notes,
        warnings=() if space is None else _space_warnings(disk_bytes, space),
    )


def _is_memory_unified(config: Config, unified_gpu: str | None) -> bool:
    if config.shared_arena:
        # Other processes move blocks through the host tier.
        return False
    return config.unified == "on" or (config.unified == AUTO and unified_gpu is not None)


def find_free_bytes(path: str) -> int:
    """Returns what an ordinary user may still allocate at `path` or its nearest parent."""
    existing = os.path.abspath(path)
    while not os.path.lexists(existing) and existing != os.path.dirname(existing):
        existing = os.path.dirname(existing)
    try:
        space = os.statvfs(existing)
    except OSError as error:
        raise ConfigError(f"path: cannot read the free space of {existing}: {error}") from error
    return space.f_bavail * space.f_frsize


def _resolve_disk_bytes(config: Config, space: DiskSpace, notes: dict[str, str]) -> int:
    if config.disk_bytes != AUTO:
        disk_bytes = _known_bytes(config.disk_bytes)
        if disk_bytes == 0:
            raise ConfigError("disk_bytes: 0 with a path; leave path out for no disk tier")
        return disk_bytes
    notes["disk_bytes"] = (
        f"{DISK_SHARE_PERCENT} % of {space.free_bytes} free bytes and {space.own_bytes} own bytes"
    )
    return (space.own_bytes + space.free_bytes) * DISK_SHARE_PERCENT // 100


def _space_warnings(disk_bytes: int, space: DiskSpace) -> tuple[str, ...]:
    have_bytes = space.own_bytes + space.free_bytes
    if disk_bytes <= have_bytes:
        return ()
    text = (
        f"disk_bytes is {format_bytes(disk_bytes)} and the disk has {format_bytes(have_bytes)} for "
        "it: the disk will be full before the cap is reached; state less, or auto"
    )
    return (text,)


def _known_bytes(value: int | str) -> int:
    if not isinstance(value, int):
        raise ConfigError(f"expected a size in bytes, got {value!r}")
    return value
