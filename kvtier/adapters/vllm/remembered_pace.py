"""RememberedPace: how fast an engine computed prompts in its last run, kept in the store's folder.

Without it an engine that has just started would not know whether its disk is worth reading. It is
advisory: whatever is wrong with the file, the rate counts as unknown. Not thread-safe, except that
the file is written by a thread of its own, so that a disk that hangs holds nobody up.
"""

import contextlib
import hashlib
import json
import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kvtier.adapters.vllm.engine_pace import SAMPLES_MAX, EnginePace

FILE_NAME: Final = "vllm-pace.json"
_FILE_BYTES_MAX: Final = 4096
_WRITE_S_MAX: Final = 1.0
# What does not change how fast it is: weights that were trained further, the user's own name.
_IRRELEVANT_FIELDS: Final = frozenset({"fingerprint"})


class RememberedPace:
    """The rate of the last engine in a folder; to another model, device or version it is none."""

    def __init__(self, folder: str | os.PathLike[str] | None, engine: Mapping[str, Any]) -> None:
        """folder: None, nothing is kept; engine: what tells it from others."""
        self._path = None if folder is None else Path(folder, FILE_NAME)
        told = {
            name: str(engine[name]) for name in sorted(engine) if name not in _IRRELEVANT_FIELDS
        }
        self._engine = hashlib.sha256(json.dumps(told).encode()).hexdigest()
        self._keep_at = 1
        """Measured steps at which it is kept next."""
        self._writer: threading.Thread | None = None

    def read(self) -> float | None:
        """Returns the tokens of prompts a second of the last run; None: unknown."""
        if self._path is None:
            return None
        try:
            with self._path.open("rb") as file:
                kept = json.loads(file.read(_FILE_BYTES_MAX))
            rate = float(kept["tokens_per_s"])
            is_ours = kept["engine"] == self._engine
        except (OSError, ValueError, TypeError, KeyError, RecursionError, OverflowError):
            return None
        if not is_ours or not math.isfinite(rate) or rate <= 0:
            return None
        # One step alone is not to replace what a whole run came to.
        self._keep_at = SAMPLES_MAX
        return rate

    def note(self, pace: EnginePace) -> None:
        """Keeps the rate when it was first measured, and whenever twice as much tells of it."""
        if pace.num_measured >= self._keep_at and self._keep(pace):
            self._keep_at = max(SAMPLES_MAX, 2 * pace.num_measured)

    def close(self, pace: EnginePace) -> None:
        """Keeps what this run came to. Waits a second at most."""
        self._wait_for_writer()
        if pace.num_measured > 0 and self._keep(pace):
            self._wait_for_writer()

    def _keep(self, pace: EnginePace) -> bool:
        """Returns whether it is being written."""
        is_busy = self._writer is not None and self._writer.is_alive()
        if self._path is None or is_busy:
            return False
        text = json.dumps({"engine": self._engine, "tokens_per_s": pace.tokens_per_s})
        writer = threading.Thread(
            target=_replace, args=(self._path, text), name="kvtier-pace", daemon=True
        )
        # No thread may be had: at the end of the interpreter, or of a limit.
        with contextlib.suppress(RuntimeError):
            writer.start()
            self._writer = writer
            return True
        return False

    def _wait_for_writer(self) -> None:
        if self._writer is not None:
            self._writer.join(_WRITE_S_MAX)


def _replace(path: Path, text: str) -> None:
    """A crash leaves the old file, the new one, or one that is not read."""
    new = path.with_name(f"{path.name}.new")
    with contextlib.suppress(OSError):
        new.unlink(missing_ok=True)
        # Not through a link that somebody laid there, and for nobody else to read.
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(text)
        new.replace(path)
