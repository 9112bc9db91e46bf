"""Journal: which prompts of a warm-up that did not come to its end are done. Not thread-safe."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import BinaryIO, Final

from kvtier.errors import ConfigError

HEADER: Final = b"kvtier warm-up journal 1\n"
"""First line: what has another one is somebody else's file, and is neither written nor removed."""
_LINE_BYTES_MAX: Final = 4096
_LINES_MAX: Final = 10_000_000


class Journal:
    """A line for each prompt that is done; the file is gone when all are.

    So a warm-up that was interrupted goes on where it was, and a later one does all again: what was
    computed then may have been evicted since.
    """

    def __init__(self, path: str, *, purpose: str, prompt_file: str | None = None) -> None:
        """purpose: what the done prompts were done for; lines of another one do not count.

        prompt_file: which file it may not be. Raises ConfigError (the file is no journal, or cannot
        be read); nothing is written yet.
        """
        # A rename would put a file in the place of a link.
        self._path = os.path.realpath(path)
        self._purpose = hashlib.sha256(purpose.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        self._file: BinaryIO | None = None
        if prompt_file is not None and _is_same_file(self._path, prompt_file):
            raise ConfigError(
                f"the journal would be the prompt file itself: {path}; name another file with "
                "--journal, or none with --journal ''"
            )
        self.done = frozenset(done for purpose, done in self._lines() if purpose == self._purpose)
        """Digests of the prompts that an interrupted run has done."""

    def __enter__(self) -> Journal:
        try:
            self._file = open(self._path, "ab", buffering=0)
            # A torn last line must not swallow the next one.
            self._file.write(b"\n" if os.fstat(self._file.fileno()).st_size else HEADER)
        except OSError as error:
            raise self._not_written(error) from error
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
        """Notes that a prompt is done. Raises ConfigError when it cannot."""
        assert self._file is not None
        try:
            self._file.write(_make_line(self._purpose, digest))
        except OSError as error:
            raise self._not_written(error) from error

    def finish(self) -> None:
        """All prompts are done: the next warm-up begins anew, those of other purposes go on.

        Raises ConfigError when the file cannot be changed: the next one would leave them out.
        """
        try:
            kept = (line for line in self._lines() if line[0] != self._purpose)
            first = next(kept, None)
            if first is None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path)
            else:
                self._replace(first, kept)
        except OSError as error:
            raise self._not_written(error) from error

    def _replace(self, first: tuple[str, str], others: Iterator[tuple[str, str]]) -> None:
        folder, name = os.path.split(self._path)
        descriptor, new_path = tempfile.mkstemp(prefix=f"{name}.", dir=folder)
        try:
            with open(descriptor, "wb") as file:
                file.write(HEADER + _make_line(*first))
                file.writelines(_make_line(*it) for it in others)
            os.replace(new_path, self._path)
        except BaseException:
            os.unlink(new_path)
            raise

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Yields purpose and digest of each line; those that cannot be read are of no run."""
        with open(self._open(), "rb") as file:
            header = file.readline(_LINE_BYTES_MAX)
            if header not in (b"", HEADER):
                raise ConfigError(
                    f"{self._path} is there and no journal of a warm-up, so it is left alone; name "
                    "another file with --journal, or none with --journal ''"
                )
            for _ in range(_LINES_MAX):
                line = file.readline(_LINE_BYTES_MAX)
                if not line:
                    return
                with contextlib.suppress(ValueError, RecursionError):
                    said = json.loads(line)
                    if isinstance(said, dict) and said.keys() == {"for", "done"}:
                        yield str(said["for"]), str(said["done"])

    def _open(self) -> int:
        """A file that is not there has no lines."""
        try:
            # A pipe must not hold the command up until somebody writes to it.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._not_read(error.strerror) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self._not_read("it is no file")
        return descriptor

    def _not_read(self, reason: str | None) -> ConfigError:
        return ConfigError(
            f"cannot read what is done: {self._path}: {reason}; name another file with --journal, "
            "or none with --journal ''"
        )

    def _not_written(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"cannot note what is done: {self._path}: {error.strerror}; name another file with "
            "--journal, or none with --journal ''"
        )


def _make_line(purpose: str, digest: str) -> bytes:
    return json.dumps({"for": purpose, "done": digest}).encode() + b"\n"


def _is_same_file(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False
