"""Where the blocks of a store lie in its segment files, read from the files alone by the documented
format, so that others than the store can read the same bytes. Thread-safe, stateless.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

_PAGE_BYTES = 4096
_FORMAT_VERSION = 1
_MAGIC = b"KVTIERSG"
# Header fields from byte 32 on: slots, parts, slot bytes, table offset, payload offset.
_HEADER = struct.Struct("<IIQQQ")
_HEADER_OFFSET_BYTES = 32
_ENTRY = np.dtype(
    {
        "names": ["key", "length", "namespace", "flags"],
        "formats": ["V16", "<u4", "<u4", "<u2"],
        "offsets": [0, 48, 52, 56],
        "itemsize": 64,
    }
)
_USED = 1


@dataclass(frozen=True, kw_only=True)
class SegmentSlots:
    """The used slots of one segment file."""

    path: Path
    slot_bytes: int
    keys: npt.NDArray[np.uint8]
    """uint8[num_used, 16]"""
    offsets_bytes: npt.NDArray[np.uint64]
    lengths_bytes: npt.NDArray[np.uint32]


def read_segment_slots(folder: str | Path) -> list[SegmentSlots]:
    """Reads header and table of every segment, by name. Of a store in use: as of its last flush.

    Raises OSError, and ValueError for a file of another format or with several parts a block.
    """
    return [_read_segment(path) for path in sorted(Path(folder).glob("segment-*.kvtier"))]


def _read_segment(path: Path) -> SegmentSlots:
    with open(path, "rb") as file:
        page = file.read(_PAGE_BYTES)
        version = int.from_bytes(page[8:12], "little")
        if page[:8] != _MAGIC or version != _FORMAT_VERSION:
            raise ValueError(f"{path.name} is no segment of format {_FORMAT_VERSION}")
        num_slots, num_parts, slot_bytes, table_offset_bytes, payload_offset_bytes = (
            _HEADER.unpack_from(page, _HEADER_OFFSET_BYTES)
        )
        if num_parts != 1:
            raise ValueError(f"{path.name} has {num_parts} parts a block; only 1 can be read here")
        file.seek(table_offset_bytes)
        table = file.read(num_slots * _ENTRY.itemsize)
    entries = np.frombuffer(table, dtype=_ENTRY, count=num_slots)
    used = np.flatnonzero(entries["flags"] & _USED)
    offsets = np.uint64(payload_offset_bytes) + used.astype(np.uint64) * np.uint64(slot_bytes)
    return SegmentSlots(
        path=path,
        slot_bytes=slot_bytes,
        keys=np.frombuffer(entries["key"][used].tobytes(), dtype=np.uint8).reshape(-1, 16),
        offsets_bytes=offsets,
        lengths_bytes=entries["length"][used],
    )
