"""Journal: which prompts of a warm-up that did not come to its end are done. Not thread-safe."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from types import TracebackType
from typing import Final, TextIO

from kvtier.errors import ConfigError

_LINE_BYTES_MAX: Final = 4096
_LINES_MAX: Final = 10_000_000


class Journal:
    """A line for each prompt that is done; the file is gone when all are.

    So a warm-up that was interrupted goes on where it was, and a later one does all again: what was
    computed then may have been evicted since.
    """

    def __init__(self, path: str, *, purpose: str) -> None:
        """purpose: what the done prompts were done for; lines of another one do not count."""
        self._path = path
        self._purpose = hashlib.sha256(purpose.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        self._file: TextIO | None = None
        self.done = frozenset(self._read())
        """Digests of the prompts that an interrupted run has done."""

    def __enter__(self) -> Journal:
        try:
            # A torn last line must not swallow the next one.
            self._file = open(self._path, "a", encoding="utf-8")
            self._file.write("\n")
        except OSError as error:
            raise ConfigError(
                f"cannot note what is done: {self._path}: {error.strerror}; name another file with "
                "--journal, or none with --journal ''"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def note(self, digest: str) -> None:
        """Notes that a prompt is done."""
        assert self._file is not None
        self._file.write(json.dumps({"for": self._purpose, "done": digest}) + "\n")
        self._file.flush()

    def finish(self) -> None:
        """All prompts are done: the next warm-up begins anew."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _read(self) -> set[str]:
        """Lines that cannot be read are of no run."""
        done = set()
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            for _ in range(_LINES_MAX):
                line = file.readline(_LINE_BYTES_MAX)
                if not line:
                    break
                with contextlib.suppress(ValueError, RecursionError):
                    said = json.loads(line)
                    if isinstance(said, dict) and said.get("for") == self._purpose:
                        done.add(str(said.get("done")))
        return done
