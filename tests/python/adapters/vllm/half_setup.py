"""An engine's store with KV tensors in CPU memory, and what vLLM would pass to the two halves."""

import hashlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kvtier.adapters.vllm.connector_settings import parse_connector_settings
from kvtier.adapters.vllm.engine_store import EngineStore
from kvtier.adapters.vllm.request_chain import RequestRules
from kvtier.paged_geometry import FragmentPlace

BLOCK_TOKENS = 4
NUM_DEVICE_BLOCKS = 32
LAYER_BYTES = (3000, 1096)
IDENTITY = {"model": "m", "fingerprint": "f", "dtype": "bfloat16", "layout": "test"}


@dataclass
class Request:
    """As vLLM's scheduler sees one."""

    request_id: str
    num_blocks: int
    num_prompt_tokens: int = 0
    kv_transfer_params: Any = None
    lora_request: Any = None
    block_hashes: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = self.num_prompt_tokens or self.num_blocks * BLOCK_TOKENS
        self.block_hashes = [hash_of(it) for it in range(self.num_blocks)]

    @property
    def context(self) -> Any:
        return SimpleNamespace(req_id=self.request_id)

    def offload_keys(self, start: int = 0, end: int | None = None) -> list[bytes]:
        return [it + bytes(4) for it in self.block_hashes[start:end]]


def hash_of(block_index: int) -> bytes:
    return hashlib.sha256(b"block %d" % block_index).digest()


def make_engine(*, rules: RequestRules | None = None, **extra: Any) -> EngineStore:
    extra = {"kv_max_cpu_memory": "4MiB", **extra}
    return EngineStore(
        parse_connector_settings(extra), identity=dict(IDENTITY), rules=rules or RequestRules()
    )


def make_tensors() -> list[Any]:
    """Two layers of KV, filled so that no two bytes of a column are alike."""
    import torch

    tensors = []
    for layer, layer_bytes in enumerate(LAYER_BYTES):
        number = torch.arange(NUM_DEVICE_BLOCKS * layer_bytes, dtype=torch.int64)
        filled = (number * 2654435761 >> 7) + layer * 31
        tensors.append(filled.to(torch.int8).reshape(NUM_DEVICE_BLOCKS, layer_bytes))
    return tensors


def attach_tensors(engine: EngineStore) -> list[Any]:
    """Gives an engine with one group its KV."""
    tensors = make_tensors()
    fragments = [
        FragmentPlace(it, 0, layer_bytes, layer_bytes) for it, layer_bytes in enumerate(LAYER_BYTES)
    ]
    engine.attach(
        tensors, fragments, num_device_blocks=NUM_DEVICE_BLOCKS, block_tokens=BLOCK_TOKENS
    )
    return tensors
