"""What the scheduler's half tells the worker's half about one transfer. Plain values."""

from dataclasses import dataclass

from vllm.v1.kv_offload.base import LoadStoreSpec

from kvtier.results import U8


@dataclass(frozen=True, slots=True)
class SaveSpec(LoadStoreSpec):
    """Blocks to save: each is the child of the one before it, the first one of `parent`."""

    keys: U8
    parent: bytes | None
    request_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class LoadSpec(LoadStoreSpec):
    """Blocks to load for one request."""

    keys: U8
    request_id: str
    generation: int
