"""`kvtier wipe`: removes a store's files, and nothing else. Stateless."""

import json
import sys

from kvtier import _core
from kvtier.cli.main import EXIT_GOOD, EXIT_USAGE
from kvtier.errors import StoreBusyError
from kvtier.store_folder import find_holder, require_folder
from kvtier.units import format_bytes


def run_wipe(path: str, *, is_confirmed: bool, is_dry_run: bool, is_json: bool) -> int:
    """Removes kvtier's files after a question; returns 2 when the answer was no."""
    files = _core.list_own_files(require_folder(path))
    allocated_bytes = sum(file_bytes for _, file_bytes in files)
    holder = find_holder(path)
    if holder is not None:
        raise StoreBusyError(f"{path} is in use by {holder}: close it first")
    is_removed = bool(files) and not is_dry_run
    if is_removed and not is_confirmed and not _ask(path, len(files), allocated_bytes):
        print("nothing was removed", file=sys.stderr)
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


def _ask(path: str, num_files: int, allocated_bytes: int) -> bool:
    question = f"remove {num_files} files ({format_bytes(allocated_bytes)}) from {path}? [y/N] "
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
