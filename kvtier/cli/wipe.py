"""`kvtier wipe`: removes a store's files, or the blocks that are chosen, and nothing else.

Stateless.
"""

import json
import os
import sys
import time

from kvtier import _core
from kvtier.cli.main import EXIT_GOOD, EXIT_USAGE
from kvtier.cli.wipe_choice import WipeChoice
from kvtier.core_log import log_core_line
from kvtier.errors import ConfigError, StoreBusyError
from kvtier.store_folder import find_holder, require_folder
from kvtier.units import MIB, TIB, format_bytes


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
    contents = _core.inspect_directory(path)
    meant_ids = choice.choose_namespaces(contents["namespaces"])
    written_s = {
        it["name"]: os.stat(os.path.join(path, it["name"])).st_mtime for it in contents["segments"]
    }
    segments = choice.choose_segments(written_s, time.time())
    spaces = [it for it in contents["namespaces"] if it["id"] in meant_ids and it["num_blocks"]]
    if choice.older_than_s is not None:
        spaces = [it for it in spaces if set(it["segments"]) & set(segments)]
    num_blocks_max = sum(it["num_blocks"] for it in spaces)
    is_removed = bool(spaces) and bool(segments) and not is_dry_run
    old = "" if choice.older_than_s is None else f" that lie in {len(segments)} segments"
    what = f"up to {num_blocks_max:,} blocks of {len(spaces)} namespaces{old}"
    if is_removed and not is_confirmed and not _ask(what, path):
        return EXIT_USAGE
    bytes_before = _allocated_bytes(path)
    num_removed = 0
    if is_removed:
        segment_ids = [] if choice.older_than_s is None else [_segment_id(it) for it in segments]
        ids = [b""] if choice.has_all_namespaces else [bytes.fromhex(it["id"]) for it in spaces]
        num_removed = _erase(path, ids, segment_ids)
    freed_bytes = bytes_before - _allocated_bytes(path)
    if is_json:
        summary = {
            "is_removed": is_removed,
            "namespaces": [it["id"] for it in spaces],
            "segments": segments if choice.older_than_s is not None else [],
            "blocks": num_removed if is_removed else num_blocks_max,
            "bytes": freed_bytes,
        }
        print(json.dumps(summary, indent=2))
    elif is_removed:
        print(f"removed {num_removed:,} blocks, freed {format_bytes(max(0, freed_bytes))}")
    else:
        print(f"{'would remove' if is_dry_run and spaces else 'found'} {what}")
    return EXIT_GOOD


def _erase(path: str, namespace_ids: list[bytes], segment_ids: list[int]) -> int:
    """Opens the store with as little as it needs, and has it remove blocks as delete() does."""
    options: _core.StoreOptions = {
        "path": path,
        "host_bytes": 0,
        "staging_bytes": MIB,
        # Nothing may be given up for a smaller cap.
        "disk_bytes": 64 * TIB,
    }
    store = _core.Store(options, log_core_line)
    try:
        return sum(store.erase_where(it, segment_ids) for it in namespace_ids)
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
