"""StoredGroup: where the blocks of one of vLLM's groups lie, in the store and in the engine.

Frozen; used by the engine's thread only.
"""

from dataclasses import dataclass
from typing import Final

from kvtier.adapters.vllm.kv_groups import KvGroup
from kvtier.namespace import Namespace
from kvtier.paged_blocks import PagedBlocks

# A key of vLLM's is the block's hash and the number of its group in four bytes.
GROUP_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """One group's own namespace and tensors."""

    group: KvGroup
    namespace: Namespace
    paged: PagedBlocks | None
    """None: the tensors are in other processes."""
    num_hashes: int = 1
    """Hashes of vLLM's for each block; the last one stands for the block."""

    @property
    def is_prefix(self) -> bool:
        """Returns whether a block is of use only with all before it; else blocks stand alone."""
        return self.group.window_tokens is None

    @property
    def block_tokens(self) -> int:
        return self.namespace.block_tokens

    @property
    def key_suffix(self) -> bytes:
        """Returns what ends vLLM's keys of this group."""
        return self.group.group_id.to_bytes(GROUP_BYTES, "big")

    @property
    def window_blocks(self) -> int | None:
        """Returns how many blocks before its end a hit needs; None: all."""
        window_tokens = self.group.window_tokens
        return None if window_tokens is None else -(-window_tokens // self.block_tokens)
