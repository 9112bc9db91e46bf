"""What serve_engine.py has the engine's worker do: clear its KV blocks, and tell them apart.

Used by the worker's thread only, between requests.
"""

import hashlib
from typing import Any

import torch

DIGEST_BYTES = 16


class ServedBlocks:
    """vLLM adds it to its worker's class, by name."""

    model_runner: Any

    def clear_blocks(self) -> None:
        """Fills all blocks with zeros, which no computed block consists of."""
        torch.accelerator.synchronize()
        for cache in self.model_runner.kv_caches:
            cache.zero_()
        torch.accelerator.synchronize()

    def digest_blocks(self) -> list[str]:
        """Returns a digest of each block that holds something, over all its layers."""
        torch.accelerator.synchronize()
        layers = [cache.flatten(1) for cache in self.model_runner.kv_caches]
        is_used = torch.stack([(layer != 0).any(1) for layer in layers]).any(0)
        rows = [layer[is_used].contiguous().view(torch.uint8).cpu() for layer in layers]
        digests = [hashlib.blake2b(digest_size=DIGEST_BYTES) for _ in range(int(is_used.sum()))]
        for row in rows:
            for digest, data in zip(digests, row.numpy(), strict=True):
                digest.update(data.tobytes())
        return [digest.hexdigest() for digest in digests]
