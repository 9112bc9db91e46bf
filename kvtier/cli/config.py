"""`kvtier config`: every setting in effect, with its origin. Stateless."""

import json

from kvtier.capacity import Capacity
from kvtier.config import SETTINGS
from kvtier.settings import resolve_settings


def run_config(file: str | None, *, is_explained: bool, is_json: bool) -> int:
    """Prints the settings that open() would use, from `file` and the environment; returns 0."""
    from kvtier.block_store import describe_effective, find_capacity

    settings = resolve_settings({}, file)
    capacity: Capacity = find_capacity(settings.config)
    effective = describe_effective(settings, capacity)
    if is_json:
        print(json.dumps({"settings": effective, "mapped": {}, "warnings": []}, indent=2))
        return 0
    for name, setting in effective.items():
        note = f"; {setting['note']}" if "note" in setting else ""
        print(f"{name} = {setting['value']}  ({setting['origin']}{note})")
        if is_explained:
            known = SETTINGS[name]
            print(f"    {known.meaning} [{known.unit}; {known.range_text}]")
            print(f"    when raised: {known.price}")
    return 0
