"""`kvtier stats`: what a store holds and how it fares, from outside and without its lock.

Stateless.
"""

from __future__ import annotations

import json

from kvtier import _core
from kvtier.cli.inspect import count_tokens, parse_description
from kvtier.cli.live_report import (
    TIERS,
    demand_line,
    headline,
    holder_line,
    latency_line,
    number_of,
    tier_line,
)
from kvtier.errors import KvtierError
from kvtier.live_state import LiveState, read_live_state
from kvtier.monitor import describe, tier_of
from kvtier.store_folder import choose_folder, find_holder
from kvtier.units import format_bytes

_EVENTS_MAX = 3


def run_stats(chosen_path: str | None, *, is_json: bool) -> int:
    """Prints blocks and bytes on disk, and what the store last told of itself; returns 0."""
    path = choose_folder(chosen_path)
    contents = _core.inspect_directory(path)
    live, problem = _find_live_state(path)
    own_files = _core.list_own_files(path)
    namespaces = contents["namespaces"]
    rooms = {} if live is None else {it["id"]: _find_room(it, contents, live) for it in namespaces}
    spaces = [
        {
            "id": it["id"],
            "model": parse_description(it["description"]).get("model"),
            "blocks": it["num_blocks"],
            "payload_bytes": it["payload_bytes"],
            "tokens": count_tokens(it, it["num_blocks"]),
            "bytes_per_token": _bytes_per_token(it),
            "capacity_tokens": rooms.get(it["id"]),
        }
        for it in namespaces
    ]
    summary = {
        "path": path,
        "store_id": contents["store_id"],
        "is_clean": contents["is_clean"],
        "holder": find_holder(path),
        "blocks": sum(it["num_blocks"] for it in namespaces),
        "payload_bytes": sum(it["payload_bytes"] for it in namespaces),
        "allocated_bytes": sum(allocated_bytes for _, allocated_bytes in own_files),
        "segments": len(contents["segments"]),
        "slots": sum(it["num_slots"] for it in contents["segments"]),
        "damaged_entries": sum(it["num_damaged"] for it in contents["segments"]),
        "unknown_files": len(contents["unknown_files"]),
        "namespaces": spaces,
    }
    if is_json:
        told = describe(live) if live is not None else None
        print(json.dumps({**summary, "live": told, "live_problem": problem}, indent=2))
        return 0
    _print_summary(summary, namespaces)
    for namespace_id, room in rooms.items():
        fits = " and ".join(f"{num_tokens:,} into {tier}" for tier, num_tokens in room.items())
        print(f"  {namespace_id}: tokens that would fit: {fits}")
    if live is not None:
        _print_live(live)
    else:
        print(f"  hits and misses: {problem}")
    return 0


def _find_live_state(path: str) -> tuple[LiveState | None, str]:
    """What lies on disk is to be seen also where the live state is not."""
    try:
        live = read_live_state(path)
    except KvtierError as error:
        return None, str(error)
    return live, "" if live is not None else "nothing was told of them yet"


def _print_live(live: LiveState) -> None:
    print(headline(live))
    print(f"  {demand_line(live.statistics)}")
    for tier in TIERS:
        print(f"  {tier_line(live.statistics, tier)}")
    print(f"  {latency_line(live.statistics)}")
    for holder in live.holders:
        print(f"  {holder_line(holder)}")
    for event in live.events[:_EVENTS_MAX]:
        print(f"  {event.level}: {event.text}")


def _print_summary(summary: dict[str, object], namespaces: list[_core.NamespaceContents]) -> None:
    holder = summary["holder"]
    print(f"{summary['path']}: store {summary['store_id']}")
    print(f"  in use by: {holder}" if holder else "  in use by: nobody")
    print(
        f"  {summary['blocks']} blocks, {_size(summary['payload_bytes'])} of payload, "
        f"{_size(summary['allocated_bytes'])} allocated in {summary['segments']} segments"
    )
    print(
        f"  {summary['damaged_entries']} damaged entries, {summary['unknown_files']} unknown files"
    )
    for it in namespaces:
        model = parse_description(it["description"]).get("model")
        per_token = _bytes_per_token(it)
        print(
            f"  {it['id']}: {it['num_blocks']} blocks, {format_bytes(it['payload_bytes'])}, "
            f"model {json.dumps(model)}" + (f", {per_token:g} bytes/token" if per_token else "")
        )


def _find_room(
    contents: _core.NamespaceContents, directory: _core.DirectoryContents, live: LiveState
) -> dict[str, int]:
    """Returns how many tokens of a namespace each tier would hold if it held nothing else."""
    named = set(contents["segments"])
    slot_bytes = [it["slot_bytes"] for it in directory["segments"] if it["name"] in named]
    block_bytes = parse_description(contents["description"]).get("block_bytes")
    if not slot_bytes and isinstance(block_bytes, int):
        slot_bytes = [block_bytes]
    if not slot_bytes or slot_bytes[0] <= 0:
        return {}
    return {
        tier: count_tokens(
            contents,
            int(number_of(tier_of(live.statistics, tier), "bytes_capacity")) // slot_bytes[0],
        )
        for tier in TIERS
    }


def _bytes_per_token(contents: _core.NamespaceContents) -> float | None:
    description = parse_description(contents["description"])
    block_bytes, block_tokens = description.get("block_bytes"), description.get("block_tokens")
    if isinstance(block_bytes, int) and isinstance(block_tokens, int) and block_tokens > 0:
        return block_bytes / block_tokens
    return None


def _size(value: object) -> str:
    return format_bytes(value) if isinstance(value, int) else "?"
