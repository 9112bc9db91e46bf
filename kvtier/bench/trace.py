"""Reader of request traces: one JSON object a line, plain, xz or gzip. Pure; no shared state."""

from __future__ import annotations

import gzip
import itertools
import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kvtier.errors import UsageError

BlockId = int | str
"""What a trace calls a block: equal ids mean an equal block and an equal prefix before it."""

_XZ_MAGIC = b"\xfd7zXZ\x00"
_GZIP_MAGIC = b"\x1f\x8b"
_RAW_KEY_BYTES_MAX = 64
_NUMBER_MAX = 1e15


class TraceError(UsageError):
    """The trace can't be read; the message names file and line."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request of a trace: the blocks of its prompt, first block first."""

    request_id: str
    hash_ids: tuple[BlockId, ...]
    timestamp_ms: float = 0.0
    input_tokens: int | None = None
    output_tokens: int | None = None
    """None where the trace does not say."""


def raw_key(block_id: BlockId) -> bytes:
    """The bytes that stand for a block id: what `Namespace.key` takes. Ints and strings differ."""
    if isinstance(block_id, int):
        return b"#" + block_id.to_bytes(16, "little", signed=True)
    return block_id.encode()


def read_trace(path: str | Path, *, num_requests_max: int | None = None) -> list[Request]:
    """Reads a trace, or its first `num_requests_max` requests; blank lines are skipped.

    Raises TraceError for a file that can't be read, a line that is no request, and an empty trace.
    """
    requests = list(itertools.islice(_iterate_requests(Path(path)), num_requests_max))
    if not requests:
        raise TraceError(f"trace holds no request: path={path}")
    return requests


def _iterate_requests(path: Path) -> Iterator[Request]:
    line_number = 0
    try:
        with _open_decompressed(path) as lines:
            for line_number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _parse_line(line, f"{path}:{line_number}")
    except (OSError, EOFError, lzma.LZMAError) as error:
        # A file cut short or damaged fails in the middle, long after it was opened.
        raise TraceError(f"cannot read trace: {path}, after line {line_number}: {error}") from error


def _open_decompressed(path: Path) -> lzma.LZMAFile | gzip.GzipFile | IO[bytes]:
    with path.open("rb") as file:
        magic = file.read(len(_XZ_MAGIC))
    # The content decides, not the name: a renamed download still opens.
    if magic == _XZ_MAGIC:
        return lzma.open(path, "rb")
    if magic.startswith(_GZIP_MAGIC):
        return gzip.open(path, "rb")
    return path.open("rb")


def _parse_line(line: bytes, place: str) -> Request:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise TraceError(f"{place}: not a JSON object: {error}") from error
    if not isinstance(fields, dict):
        raise TraceError(f"{place}: want a JSON object, got {type(fields).__name__}")
    if "hash_ids" not in fields:
        raise TraceError(f"{place}: no field 'hash_ids'")
    hash_ids = fields["hash_ids"]
    if not isinstance(hash_ids, list):
        raise TraceError(f"{place}: 'hash_ids' must be a list, got {type(hash_ids).__name__}")
    for index, hash_id in enumerate(hash_ids):
        if not _is_block_id(hash_id):
            raise TraceError(
                f"{place}: hash_ids[{index}] must be an integer of at most 127 bits "
                f"or a string of 1 to {_RAW_KEY_BYTES_MAX} bytes, got {hash_id!r:.80}"
            )
    # The place is unique in the trace; ids of other sources need not be.
    return Request(
        request_id=place,
        hash_ids=tuple(hash_ids),
        timestamp_ms=_number(fields, "timestamp", place) or 0.0,
        input_tokens=_whole_number(fields, "input_length", place),
        output_tokens=_whole_number(fields, "output_length", place),
    )


def _whole_number(fields: dict[str, object], name: str, place: str) -> int | None:
    value = _number(fields, name, place)
    return None if value is None else int(value)


def _number(fields: dict[str, object], name: str, place: str) -> float | None:
    """An optional field that is no negative number."""
    value = fields.get(name)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 <= value <= _NUMBER_MAX
    ):
        raise TraceError(
            f"{place}: {name!r} must be a number from 0 to {_NUMBER_MAX:g}, got {value!r:.80}"
        )
    return float(value)


def _is_block_id(value: object) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return -(1 << 127) <= value < 1 << 127
    return isinstance(value, str) and 1 <= len(value.encode()) <= _RAW_KEY_BYTES_MAX
