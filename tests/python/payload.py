"""Block bytes that prove which block they are: a swapped, stale or shifted one cannot pass."""

import hashlib

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
_WORD_BYTES = 8


def payload(key: object, generation: int, block_bytes: int) -> U8:
    """Returns uint8[block_bytes]: each word mixes key, generation and its own offset."""
    text = key.tobytes() if isinstance(key, np.ndarray) else repr(key).encode()
    digest = hashlib.sha256(text + generation.to_bytes(8, "little")).digest()
    seed = np.frombuffer(digest[:_WORD_BYTES], dtype="<u8")[0]
    num_words = -(-block_bytes // _WORD_BYTES)
    offsets = np.arange(1, num_words + 1, dtype=np.uint64)
    # An odd multiplier makes every word of a block differ; wrapping is wanted.
    words = (offsets * np.uint64(0x9E3779B97F4A7C15)) ^ (offsets >> np.uint64(7)) ^ seed
    return np.ascontiguousarray(words.view(np.uint8)[:block_bytes])


def payloads(keys: U8, generation: int, block_bytes: int) -> U8:
    """Returns uint8[num_blocks, block_bytes]."""
    blocks = [payload(key, generation, block_bytes) for key in keys]
    return np.stack(blocks) if blocks else np.zeros((0, block_bytes), dtype=np.uint8)


def canary(num_blocks: int, block_bytes: int) -> U8:
    """Returns uint8[num_blocks, block_bytes] of a pattern that no payload has; to see what is
    touched."""
    return np.full((num_blocks, block_bytes), 0xA5, dtype=np.uint8)
