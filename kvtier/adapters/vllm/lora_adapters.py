"""LoraAdapters: tells the blocks of adapters apart, also of one that was trained on under its name.

Not thread-safe: used by the scheduler's thread only. vLLM's objects are taken as they come.
"""

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any

from kvtier.adapters.vllm.engine_identity import describe_files, digest_texts
from kvtier.core_log import warn_once
from kvtier.units import show


class LoraAdapters:
    """What was seen of each adapter at its first request, when vLLM has just loaded it."""

    def __init__(self) -> None:
        # (name, vLLM's number of this loading, path) -> digest.
        self._known: dict[tuple[str, int, str], bytes | None] = {}

    def find(self, lora_request: Any) -> bytes | None:
        """Returns what sets an adapter's blocks apart: 16 bytes, none without an adapter.

        None: nobody can vouch for what it computes with, so its blocks must not be kept.
        """
        if lora_request is None:
            return b""
        path = str(getattr(lora_request, "lora_path", "") or getattr(lora_request, "path", ""))
        key = (str(lora_request.lora_name), int(getattr(lora_request, "lora_int_id", 0)), path)
        if getattr(lora_request, "load_inplace", False):
            # vLLM reads its files anew whenever it needs it.
            _warn(key[0], "it is loaded in place")
            return None
        if key not in self._known:
            self._known[key] = _describe(key[0], path)
        return self._known[key]


def _describe(name: str, path: str) -> bytes | None:
    if not os.path.isdir(path):
        _warn(name, f"{show(path)} is not a folder")
        return None
    # Files that cannot be looked at are files that nobody can vouch for.
    with contextlib.suppress(OSError):
        text = f"{name} {path} {digest_texts(describe_files(Path(path)))}"
        return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).digest()
    _warn(name, f"the files in {show(path)} cannot be read")
    return None


def _warn(name: str, reason: str) -> None:
    warn_once(
        ("adapter", name),
        f"blocks of the adapter {show(name)} are not kept: {reason}; load it from a folder, and "
        "what was trained on under another name",
    )
