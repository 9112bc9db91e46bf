"""ConnectorSettings: what a user may say in kv_connector_extra_config, checked all at once.

Pure functions; thread-safe.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvtier.config import SETTINGS, raise_problems, unknown_setting_text
from kvtier.errors import ConfigError
from kvtier.machine import unified_gpu
from kvtier.setting_parsers import AUTO, parse_boolean
from kvtier.units import MIB, show

ORIGIN: Final = "kv_connector_extra_config"
DEVICES: Final = ("cpu", "disk", "hybrid", "off")
DISK_MODE_HOST_BYTES: Final = 256 * MIB
"""With kv_device disk: where saves wait for the disk, so that the engine gets its blocks back."""
LOAD_CAP_RANGE: Final = (0.01, 100.0)
# Names of other tools' settings -> the store's own.
_ALIASES: Final = {"disk_path": "path", "kv_max_cpu_memory": "host_bytes"}
# Read by vLLM itself.
_EVENTS: Final = "self_describing_kv_events"
_OWN_NAMES: Final = ("kv_device", "save_decode", "allow_pins", "load_cap", "fingerprint", _EVENTS)
_KNOWN: Final = (*_OWN_NAMES, *_ALIASES, *SETTINGS)
LOADS_WAIT: Final = "kvtier_loads_wait"
"""Said by the connector to its halves: a step under way may still write to a load's blocks."""
# Set by this adapter for vLLM's part of the work, and so met again when a second role starts.
_INTERNAL: Final = frozenset({"spec_name", "spec_module_path", LOADS_WAIT})
_BLOCK_REMEDY: Final = "a block is always vLLM's own block; use vLLM's --block-size"
_REFUSED: Final = {
    "block_size": _BLOCK_REMEDY,
    "blocks_per_chunk": _BLOCK_REMEDY,
    "offload_prompt_only": "use save_decode, which means the opposite",
    "cpu_bytes_to_use": "use kv_max_cpu_memory",
    "shared": "each engine has a store of its own",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSettings:
    """Checked settings of one connector."""

    device: str
    """One of DEVICES."""
    save_decode: bool
    """Whether generated tokens are saved too: the next turn of a conversation needs them."""
    allow_pins: bool
    """Whether a request may keep its prompt's blocks from eviction."""
    load_cap: float | None
    """A load from disk may take this many times as long as computing would; None: any time."""
    fingerprint: str | None
    """Names the weights; None: taken from their files."""
    store: Mapping[str, object]
    """Explicit arguments of kvtier.open(), path included."""
    store_defaults: Mapping[str, object]
    """What the device implies where neither the user nor a variable says anything."""

    @property
    def path(self) -> str | None:
        """Returns the folder of the disk tier."""
        path = self.store.get("path")
        return None if path is None else str(path)


def parse_connector_settings(extra_config: Mapping[str, object]) -> ConnectorSettings:
    """Returns the checked settings. Raises ConfigError with all problems at once."""
    problems: list[str] = []
    store = _collect_store_settings(extra_config, problems)
    device = _find_device(extra_config.get("kv_device"), store, problems)
    flags = {"save_decode": True, "allow_pins": False}
    for name, default in flags.items():
        try:
            flags[name] = parse_boolean(extra_config.get(name, default), name)
        except ConfigError as error:
            problems.append(str(error))
    load_cap = _parse_load_cap(extra_config.get("load_cap", 1.0), problems)
    fingerprint = extra_config.get("fingerprint")
    if fingerprint is not None and (not isinstance(fingerprint, str) or not fingerprint):
        problems.append(f"fingerprint: expected text, got {show(fingerprint)}")
    if not isinstance(extra_config.get(_EVENTS, False), bool):
        # vLLM takes any text for true.
        problems.append(f"{_EVENTS}: expected true or false, got {show(extra_config[_EVENTS])}")
    _check_device(device, store, problems)
    raise_problems(problems)
    return ConnectorSettings(
        device=device,
        save_decode=flags["save_decode"],
        allow_pins=flags["allow_pins"],
        load_cap=load_cap,
        fingerprint=None if fingerprint is None else str(fingerprint),
        store=store if device != "off" else {},
        store_defaults=_store_defaults(device, store),
    )


def _parse_load_cap(said: object, problems: list[str]) -> float | None:
    word = said.strip().lower() if isinstance(said, str) else said
    # YAML and JSON tools turn a bare off into false.
    if word is False or word == "off":
        return None
    try:
        margin = math.nan if word is True else float(word)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        margin = math.nan
    if not LOAD_CAP_RANGE[0] <= margin <= LOAD_CAP_RANGE[1]:
        low, high = LOAD_CAP_RANGE
        problems.append(f"load_cap: expected {low:g} to {high:g}, or off; got {show(said)}")
        return None
    return margin


def _store_defaults(device: str, store: Mapping[str, object]) -> dict[str, object]:
    # Kernels of saves would hold up those of the engine.
    defaults: dict[str, object] = {"gentle_saves": True}
    unified = store.get("unified") or SETTINGS["unified"].parse(
        os.environ.get("KVTIER_UNIFIED", AUTO), "KVTIER_UNIFIED"
    )
    is_unified = unified == "on" or (unified == AUTO and unified_gpu() is not None)
    # Blocks pass through host memory in any case; where it is the GPU's too, no more than that.
    if device == "disk" or (device == "hybrid" and is_unified):
        defaults["host_bytes"] = DISK_MODE_HOST_BYTES
    return defaults


def _collect_store_settings(
    extra_config: Mapping[str, object], problems: list[str]
) -> dict[str, object]:
    store: dict[str, object] = {}
    said_as: dict[str, str] = {}
    for said, value in extra_config.items():
        if said in _REFUSED:
            problems.append(f"{said}: not supported; {_REFUSED[said]}")
            continue
        if said in _OWN_NAMES or said in _INTERNAL:
            continue
        name = _ALIASES.get(said, said)
        setting = SETTINGS.get(name)
        if setting is None:
            problems.append(unknown_setting_text(said, ORIGIN, _KNOWN))
            continue
        try:
            parsed = setting.parse(value, said)
        except ConfigError as error:
            problems.append(str(error))
            continue
        if name in store and store[name] != parsed:
            problems.append(
                f"{said_as[name]} and {said} are one setting with two values: "
                f"{show(store[name])} and {show(parsed)}"
            )
        store[name], said_as[name] = parsed, said
    return store


def _find_device(said: object, store: Mapping[str, object], problems: list[str]) -> str:
    if said is None:
        has_disk = store.get("path") is not None or bool(os.environ.get("KVTIER_PATH"))
        return "hybrid" if has_disk else "cpu"
    # YAML and JSON tools turn a bare off into false.
    word = "off" if said is False else said
    if isinstance(word, str) and word.strip().lower() in DEVICES:
        return word.strip().lower()
    problems.append(f"kv_device: expected one of {', '.join(DEVICES)}; got {show(said)}")
    return "off"


def _check_device(device: str, store: Mapping[str, object], problems: list[str]) -> None:
    has_disk = store.get("path") is not None or bool(os.environ.get("KVTIER_PATH"))
    has_no_host = store.get("host_bytes") == 0
    if device == "cpu" and has_disk:
        problems.append("kv_device is cpu but there is a disk_path; use hybrid, or leave it out")
    if device == "cpu" and has_no_host:
        problems.append("kv_device is cpu but kv_max_cpu_memory is 0; give it a size, or use off")
    if device in {"disk", "hybrid"} and not has_disk:
        problems.append(f"kv_device is {device} but there is no disk_path; name a folder on an SSD")
    if device in {"disk", "hybrid"} and has_no_host:
        problems.append(
            f"kv_device is {device} but kv_max_cpu_memory is 0: blocks pass through host memory; "
            "leave it out, or give it a size"
        )
