"""What the scheduler's half tells the worker's half about one transfer. Plain values."""

from dataclasses import dataclass
from typing import NamedTuple

from vllm.v1.kv_offload.base import LoadStoreSpec

from kvtier.results import U8


class GroupSave(NamedTuple):
    """Blocks of one group to save."""

    keys: U8
    parent: bytes | None
    """The block before the first one."""
    is_chain: bool = True
    """Each block is the child of the one before it; else they stand alone."""


@dataclass(frozen=True, slots=True)
class SaveSpec(LoadStoreSpec):
    """Blocks to save, one entry a group."""

    groups: tuple[GroupSave, ...]
    request_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class LoadSpec(LoadStoreSpec):
    """Blocks to load for one request: keys, one entry a group."""

    groups: tuple[U8, ...]
    request_id: str
    generation: int
