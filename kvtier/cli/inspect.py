"""`kvtier inspect`: namespaces with all fields, and segments, from a store's files. Stateless."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping

from kvtier import _core
from kvtier.cli.live_report import format_span
from kvtier.store_folder import require_folder
from kvtier.units import format_bytes


def run_inspect(path: str, *, is_json: bool) -> int:
    """Prints what lies in the folder; returns 0. Beside a running store it may mix two instants."""
    contents = _core.inspect_directory(require_folder(path), chains=True)
    written_s = {it["name"]: find_written_s(path, it["name"]) for it in contents["segments"]}
    namespaces = [
        {
            **it,
            **describe_contents(it, written_s),
            "description": parse_description(it["description"]),
        }
        for it in contents["namespaces"]
    ]
    segments = [{**it, "written_s": written_s[it["name"]]} for it in contents["segments"]]
    if is_json:
        shown = {**contents, "namespaces": namespaces, "segments": segments}
        print(json.dumps(shown, indent=2))
        return 0
    now_s = time.time()
    state = "closed cleanly" if contents["is_clean"] else "in use or not closed"
    print(f"store {contents['store_id']} ({state})")
    for it in namespaces:
        _print_namespace(it, now_s)
    for segment in contents["segments"]:
        damaged = f", {segment['num_damaged']} damaged" if segment["num_damaged"] else ""
        print(
            f"{segment['name']}: {segment['num_used']} of {segment['num_slots']} slots of "
            f"{format_bytes(segment['slot_bytes'])} in use{damaged}, last written "
            f"{_ago(written_s[segment['name']], now_s)}"
        )
    for name in contents["unknown_files"]:
        print(f"{name}: not readable by this version (left alone)")
    return 0


def describe_contents(
    contents: _core.NamespaceContents, written_s: Mapping[str, float | None]
) -> dict[str, object]:
    """Returns what follows from a namespace's counts and its description.

    tokens: that its blocks stand for. written_s: when a block of it, or one beside it, was last
    written.
    """
    times = [time_s for it in contents["segments"] if (time_s := written_s.get(it)) is not None]
    return {
        "tokens": count_tokens(contents, contents["num_blocks"]),
        "written_s": max(times, default=None),
    }


def find_written_s(path: str, name: str) -> float | None:
    """Returns when a file of the folder was last written to; None: it is gone."""
    try:
        return os.stat(os.path.join(path, name)).st_mtime
    except OSError:
        return None  # Removed since it was listed.


def _print_namespace(it: Mapping[str, object], now_s: float) -> None:
    pinned = f" ({it['num_pinned']} pinned)" if it["num_pinned"] else ""
    print(
        f"namespace {it['id']}: {it['num_blocks']:,} blocks{pinned}, "
        f"{format_bytes(_number(it['payload_bytes']))}, {it['tokens']:,} tokens; "
        f"{it['num_chains']:,} chains, the longest of {it['chain_blocks_max']:,} blocks; last "
        f"written {_ago(it['written_s'], now_s)}"
    )
    description = it["description"]
    assert isinstance(description, Mapping)
    for name, value in description.items():
        print(f"  {name}: {json.dumps(value)}")


def _ago(time_s: object, now_s: float) -> str:
    return f"{format_span(max(0.0, now_s - time_s))} ago" if isinstance(time_s, float) else "never"


def count_tokens(contents: _core.NamespaceContents, num_blocks: int) -> int:
    """Returns the tokens of so many blocks; 0 where the description does not tell."""
    block_tokens = parse_description(contents["description"]).get("block_tokens")
    return num_blocks * block_tokens if isinstance(block_tokens, int) else 0


def parse_description(text: str) -> Mapping[str, object]:
    """Returns the fields of a canonical description; text that is none stands under "text"."""
    try:
        description = json.loads(text)
    except ValueError:
        description = None
    return description if isinstance(description, dict) else {"text": text}


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
