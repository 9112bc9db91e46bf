"""`kvtier wipe`: removes a store's files, or the blocks that are chosen, and nothing else.

Stateless.
"""

import json
import sys
import time
from dataclasses import dataclass

from kvtier import _core
from kvtier.cli.inspect import find_written_s
from kvtier.cli.main import EXIT_GOOD, EXIT_USAGE
from kvtier.cli.wipe_choice import WipeChoice
from kvtier.core_log import log_core_line
from kvtier.errors import ConfigError, StoreBusyError
from kvtier.store_folder import find_holder, require_folder
from kvtier.units import MIB, TIB, format_bytes

_BLOCKS_MIN = 1024


def run_wipe(
    path: str, choice: WipeChoice, *, is_confirmed: bool, is_dry_run: bool, is_json: bool
) -> int:
    """Removes what is chosen after a question; returns 2 when the answer was no.

    Only of a store that is not in use: who has it open has BlockStore.wipe() and clear().
    """
    require_folder(path)
    holder = find_holder(path)
    if holder is not None:
        raise StoreBusyError(
            f"{path} is in use by {holder}: close it first, or call wipe() or clear() there"
        )
    if choice.is_everything:
        return _wipe_files(path, is_confirmed=is_confirmed, is_dry_run=is_dry_run, is_json=is_json)
    return _wipe_blocks(
        path, choice, is_confirmed=is_confirmed, is_dry_run=is_dry_run, is_json=is_json
    )


def _wipe_files(path: str, *, is_confirmed: bool, is_dry_run: bool, is_json: bool) -> int:
    files = _core.list_own_files(path)
    allocated_bytes = sum(file_bytes for _, file_bytes in files)
    is_removed = bool(files) and not is_dry_run
    what = f"{len(files)} files ({format_bytes(allocated_bytes)})"
    if is_removed and not is_confirmed and not _ask(what, path):
        return EXIT_USAGE
    if is_removed:
        files = _core.wipe_directory(path)
        allocated_bytes = sum(file_bytes for _, file_bytes in files)
    if is_json:
        names = [name for name, _ in files]
        summary = {"is_removed": is_removed, "files": names, "bytes": allocated_bytes}
        print(json.dumps(summary, indent=2))
    else:
        action = "removed" if is_removed else "would remove" if is_dry_run else "found"
        print(f"{action} {len(files)} files, {format_bytes(allocated_bytes)}")
    return EXIT_GOOD


def _wipe_blocks(
    path: str, choice: WipeChoice, *, is_confirmed: bool, is_dry_run: bool, is_json: bool
) -> int:
    chosen = _choose(path, choice)
    is_removed = chosen.is_any and not is_dry_run
    if is_removed and not is_confirmed:
        if not _ask(chosen.text, path):
            return EXIT_USAGE
        # The answer may have taken long, and somebody may have used the store meanwhile.
        chosen = _choose(path, choice)
        is_removed = chosen.is_any
    bytes_before = _allocated_bytes(path)
    num_removed = 0
    if is_removed:
        num_removed = _erase(path, chosen)
    freed_bytes = bytes_before - _allocated_bytes(path)
    if is_json:
        summary = {
            "is_removed": is_removed,
            "namespaces": chosen.namespace_ids,
            "segments": chosen.segments,
            "blocks": num_removed if is_removed else chosen.num_blocks_max,
            "bytes": freed_bytes,
        }
        print(json.dumps(summary, indent=2))
    elif is_removed:
        print(f"removed {num_removed:,} blocks, freed {format_bytes(max(0, freed_bytes))}")
    else:
        print(f"{'would remove' if is_dry_run and chosen.is_any else 'found'} {chosen.text}")
    return EXIT_GOOD


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """What a choice comes to in a folder as it is now."""

    namespace_ids: list[str]
    has_all_namespaces: bool
    segments: list[str]
    """Empty: wherever they lie."""
    is_any: bool
    num_blocks_max: int
    num_slots: int
    """Of the whole store."""

    @property
    def text(self) -> str:
        old = f" that lie in {len(self.segments)} segments" if self.segments else ""
        return f"up to {self.num_blocks_max:,} blocks of {len(self.namespace_ids)} namespaces{old}"


def _choose(path: str, choice: WipeChoice) -> _Chosen:
    contents = _core.inspect_directory(path)
    meant_ids = choice.choose_namespaces(contents["namespaces"])
    spaces = [it for it in contents["namespaces"] if it["id"] in meant_ids and it["num_blocks"]]
    segments: list[str] = []
    if choice.older_than_s is not None:
        written_s = {it["name"]: find_written_s(path, it["name"]) for it in contents["segments"]}
        known_s = {name: time_s for name, time_s in written_s.items() if time_s is not None}
        segments = choice.choose_segments(known_s, time.time())
        spaces = [it for it in spaces if set(it["segments"]) & set(segments)]
    return _Chosen(
        namespace_ids=[it["id"] for it in spaces],
        has_all_namespaces=choice.has_all_namespaces,
        segments=segments,
        is_any=bool(spaces) and (bool(segments) or choice.older_than_s is None),
        num_blocks_max=sum(it["num_blocks"] for it in spaces),
        num_slots=sum(it["num_slots"] for it in contents["segments"]),
    )


def _erase(path: str, chosen: _Chosen) -> int:
    """Opens the store with as little as it needs, and has it remove blocks as delete() does."""
    options: _core.StoreOptions = {
        "path": path,
        "host_bytes": 0,
        "staging_bytes": MIB,
        # Nothing may be given up for a smaller cap or index than the store had.
        "disk_bytes": 64 * TIB,
        "blocks_max": max(_BLOCKS_MIN, chosen.num_slots),
    }
    segment_ids = [_segment_id(it) for it in chosen.segments]
    everywhere = [b""] if chosen.has_all_namespaces else None
    store = _core.Store(options, log_core_line)
    try:
        return sum(
            store.erase_where(it, segment_ids)
            for it in everywhere or [bytes.fromhex(it) for it in chosen.namespace_ids]
        )
    finally:
        store.close(60.0)


def _allocated_bytes(path: str) -> int:
    return sum(file_bytes for _, file_bytes in _core.list_own_files(path))


def _segment_id(name: str) -> int:
    """Of "segment-00000012.kvtier"."""
    digits = name.removeprefix("segment-").removesuffix(".kvtier")
    if not digits.isdecimal():
        raise ConfigError(f"not a segment's name: {name}")
    return int(digits)


def _ask(what: str, path: str) -> bool:
    print(f"remove {what} from {path}? [y/N] ", end="", file=sys.stderr, flush=True)
    is_yes = sys.stdin.readline().strip().lower() in {"y", "yes"}
    if not is_yes:
        print("nothing was removed", file=sys.stderr)
    return is_yes
