"""Opens a store in a folder, or in the first free instance-N below it when the folder is in use.

Thread-safe.
"""

import os
from collections.abc import Mapping
from typing import Final

import kvtier
from kvtier.core_log import warn_once
from kvtier.machine import memory_limit
from kvtier.setting_parsers import AUTO
from kvtier.units import show

INSTANCES_MAX: Final = 64
HOST_PERCENT_AUTO: Final = 20


def open_store(
    arguments: Mapping[str, object],
    defaults: Mapping[str, object],
    *,
    first_instance: int = 0,
) -> "kvtier.BlockStore":
    """Opens the store that `arguments` of kvtier.open() ask for; `defaults` stand beneath them.

    first_instance: where to begin; engines of a data-parallel group say their rank, so that each
    finds its own folder again after a restart. 0 is the folder itself.
    Waits lock_wait_s for the first folder only. Raises as kvtier.open() does, StoreBusyError when
    all INSTANCES_MAX folders are in use.
    """
    config = dict(defaults)
    path = arguments.get("path")
    if path is None:
        return kvtier.open(config=config, **arguments)  # type: ignore[arg-type]
    top = os.fspath(path)  # type: ignore[call-overload]
    said: dict[str, object] = dict(arguments)
    order = [first_instance, *(it for it in range(INSTANCES_MAX) if it != first_instance)]
    for attempt, instance in enumerate(order):
        said["path"] = _instance_path(top, instance)
        try:
            store = kvtier.open(config=config, **said)  # type: ignore[arg-type]
        except kvtier.StoreBusyError as error:
            if attempt == 0:
                first_error = error
            said["lock_wait_s"] = 0.0
            continue
        if attempt > 0:
            warn_once(
                ("instance", top),
                f"{first_error}: this engine keeps its blocks in {show(said['path'])}; "
                "lock_wait_s lets a restart wait for the engine before it",
            )
        return store
    raise kvtier.StoreBusyError(
        f"{show(top)} and its {INSTANCES_MAX - 1} instance folders are all in use; "
        "give this engine a disk_path of its own"
    )


def divide_budget(arguments: Mapping[str, object], num_engines: int) -> dict[str, object]:
    """Returns `arguments` with the sizes shared by the engines of a data-parallel group.

    A share of the disk that is not stated needs no division: none takes what another has.
    """
    divided = dict(arguments)
    if num_engines > 1 and divided.get("host_bytes", AUTO) == AUTO:
        divided["host_bytes"] = memory_limit().limit_bytes * HOST_PERCENT_AUTO // 100
    for name in ("host_bytes", "disk_bytes"):
        whole_bytes = divided.get(name)
        if isinstance(whole_bytes, int):
            divided[name] = whole_bytes // num_engines
    return divided


def _instance_path(top: str, instance: int) -> str:
    return top if instance == 0 else os.path.join(top, f"instance-{instance}")
