"""`kvtier inspect`: namespaces with all fields, and segments, from a store's files. Stateless."""

from __future__ import annotations

import json
from collections.abc import Mapping

from kvtier import _core
from kvtier.store_folder import require_folder
from kvtier.units import format_bytes


def run_inspect(path: str, *, is_json: bool) -> int:
    """Prints what lies in the folder; returns 0."""
    contents = _core.inspect_directory(require_folder(path))
    namespaces = [
        {**it, "description": parse_description(it["description"])} for it in contents["namespaces"]
    ]
    if is_json:
        print(json.dumps({**contents, "namespaces": namespaces}, indent=2))
        return 0
    state = "closed cleanly" if contents["is_clean"] else "in use or not closed"
    print(f"store {contents['store_id']} ({state})")
    for it in namespaces:
        pinned = f" ({it['num_pinned']} pinned)" if it["num_pinned"] else ""
        print(
            f"namespace {it['id']}: {it['num_blocks']} blocks{pinned}, "
            f"{format_bytes(_number(it['payload_bytes']))}"
        )
        description = it["description"]
        assert isinstance(description, Mapping)
        for name, value in description.items():
            print(f"  {name}: {json.dumps(value)}")
    for segment in contents["segments"]:
        damaged = f", {segment['num_damaged']} damaged" if segment["num_damaged"] else ""
        print(
            f"{segment['name']}: {segment['num_used']} of {segment['num_slots']} slots of "
            f"{format_bytes(segment['slot_bytes'])} in use{damaged}"
        )
    for name in contents["unknown_files"]:
        print(f"{name}: not readable by this version (left alone)")
    return 0


def parse_description(text: str) -> Mapping[str, object]:
    """Returns the fields of a canonical description; text that is none stands under "text"."""
    try:
        description = json.loads(text)
    except ValueError:
        description = None
    return description if isinstance(description, dict) else {"text": text}


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
