"""The modes that are compared: what each tells vLLM. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

OFF = "off"
CPU = "cpu"
DISK = "disk"
HYBRID = "hybrid"
NATIVE = "native"
LMCACHE = "lmcache"
MODES = (OFF, CPU, DISK, HYBRID, NATIVE, LMCACHE)
DEFAULT_MODES = (OFF, CPU, DISK, HYBRID)
KVTIER_MODES = (CPU, DISK, HYBRID)
DISK_MODES = (DISK, HYBRID)

_MODULE = "kvtier.adapters.vllm.connector"
_NATIVE_CHUNK_TOKENS = 256


@dataclass(frozen=True, kw_only=True)
class TierSizes:
    """What the modes may use beside the device. Sizes in bytes."""

    host_bytes: int
    """Of cpu, native and lmcache."""
    hybrid_host_bytes: int
    disk_bytes: int
    disk_host_bytes: int
    """Host memory of disk, for blocks on their way."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further settings of kvtier's modes, by name."""
    num_io_threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModeLaunch:
    """How vLLM is started for a mode."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: str | None = None
    """A Python package that vLLM's environment has to have."""


def make_launch(mode: str, sizes: TierSizes, disk_folder: Path) -> ModeLaunch:
    """Returns what `vllm serve` gets for the mode; `disk_folder` is used by modes with a disk."""
    if mode == OFF:
        # No connector at all: what kvtier costs where it helps nothing shows too.
        return ModeLaunch(arguments=())
    if mode in KVTIER_MODES:
        return ModeLaunch(arguments=_connector(_kvtier_connector(mode, sizes, disk_folder)))
    if mode == NATIVE:
        extra = {"cpu_bytes_to_use": sizes.host_bytes, "block_size": _NATIVE_CHUNK_TOKENS}
        return ModeLaunch(
            arguments=_connector(
                {
                    "kv_connector": "OffloadingConnector",
                    "kv_role": "kv_both",
                    "kv_connector_extra_config": extra,
                }
            )
        )
    return ModeLaunch(
        arguments=_connector({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}),
        environment={
            "LMCACHE_LOCAL_CPU": "True",
            "LMCACHE_MAX_LOCAL_CPU_SIZE": f"{sizes.host_bytes / 2**30:.3f}",
            "LMCACHE_TRACK_USAGE": "false",
        },
        needs="lmcache",
    )


def _kvtier_connector(mode: str, sizes: TierSizes, disk_folder: Path) -> dict[str, object]:
    extra: dict[str, object] = {"kv_device": mode}
    host_bytes = {CPU: sizes.host_bytes, HYBRID: sizes.hybrid_host_bytes}
    extra["kv_max_cpu_memory"] = host_bytes.get(mode, sizes.disk_host_bytes)
    if mode in DISK_MODES:
        extra |= {"disk_path": str(disk_folder), "disk_bytes": sizes.disk_bytes}
        if sizes.num_io_threads is not None:
            # Threads matter only where io_uring does not do their work.
            extra |= {"num_io_threads": sizes.num_io_threads, "io": "threads"}
    return {
        "kv_connector": "KvtierConnector",
        "kv_connector_module_path": _MODULE,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {**extra, **sizes.settings},
    }


def _connector(config: dict[str, object]) -> tuple[str, ...]:
    return "--kv-transfer-config", json.dumps(config)
