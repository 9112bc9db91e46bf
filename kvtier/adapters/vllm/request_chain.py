"""RequestChain: the blocks of one request as keys, and what was found of them.

Not thread-safe: used by the scheduler's thread only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvtier.block_keys import KEY_BYTES
from kvtier.namespace import Namespace
from kvtier.results import U8


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRules:
    """What may be done with the blocks of one request."""

    is_loading: bool = True
    is_saving: bool = True
    saves_decode: bool = True


class RequestChain:
    """The hashes that the engine gave a request's blocks, and the keys made of them.

    A key is made once and kept: a request is looked up again in each step that it waits.
    """

    def __init__(
        self,
        hashes: Sequence[bytes],
        *,
        context: bytes,
        num_prompt_blocks: int,
        rules: RequestRules,
    ) -> None:
        # The engine's own list, which grows while the request decodes.
        self._hashes = hashes
        self._context = context
        self._keys = bytearray()
        self._cursor = 0
        self.num_prompt_blocks = num_prompt_blocks
        self.rules = rules
        self.found_end = 0
        """Blocks up to here can be loaded, as far as the last lookup knows."""
        self.is_pending = False
        """What was found is not near enough yet: ask again."""
        self.pending_until_s: float | None = None

    def keys(self, namespace: Namespace, start: int, end: int) -> U8:
        """Returns uint8[end - start, 16]: the keys of blocks from `start` to before `end`."""
        for block_index in range(len(self._keys) // KEY_BYTES, end):
            self._keys += namespace.key(self._hashes[block_index] + self._context).tobytes()
        made = np.frombuffer(bytes(self._keys[start * KEY_BYTES : end * KEY_BYTES]), dtype=np.uint8)
        return made.reshape(end - start, KEY_BYTES)

    @property
    def num_blocks(self) -> int:
        """Returns how many whole blocks the request has by now."""
        return len(self._hashes)

    def find(self, block_hash: bytes) -> int | None:
        """Returns the index of a block. Free when asked in order, as the engine does."""
        cursor = self._cursor
        if cursor < len(self._hashes) and self._hashes[cursor] == block_hash:
            self._cursor = cursor + 1
            return cursor
        for block_index, known in enumerate(self._hashes):
            if known == block_hash:
                self._cursor = block_index + 1
                return block_index
        return None

    def find_run(self, block_hashes: Sequence[bytes]) -> tuple[int, int] | None:
        """Returns (start, end) of the blocks with these hashes, cut where they stop following."""
        start = self.find(block_hashes[0]) if block_hashes else None
        if start is None:
            return None
        end = start + 1
        for block_hash in block_hashes[1:]:
            if end >= len(self._hashes) or self._hashes[end] != block_hash:
                break
            end += 1
        self._cursor = end
        return start, end

    def seek(self, block_index: int) -> None:
        """Says which block will be asked for next."""
        self._cursor = block_index

    def change_context(self, context: bytes) -> None:
        """Forgets all keys: from now on the blocks are others, under other keys."""
        self._context = context
        self._keys.clear()
        self.found_end = 0
