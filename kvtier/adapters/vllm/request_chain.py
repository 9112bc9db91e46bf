"""RequestChain: the blocks of one request in one group as keys, and what was found of them.

Not thread-safe: used by the scheduler's thread only.
"""

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kvtier.block_keys import KEY_BYTES
from kvtier.namespace import Namespace
from kvtier.results import U8, Mask

DIGEST_BYTES: Final = 32
_FOLD_DOMAIN: Final = b"vllm block 1\0"
NO_KEYS: Final = np.empty((0, KEY_BYTES), dtype=np.uint8)
NOTHING_FOUND: Final[Mask] = np.empty(0, dtype=np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRules:
    """What may be done with the blocks of one request."""

    is_loading: bool = True
    is_saving: bool = True
    saves_decode: bool = True
    may_pin: bool = False
    """Whether requests are heard that want their prompts kept from eviction, or no longer kept."""
    pins: bool | None = None
    """True: this one's prompt is to be pinned; False: unpinned; None: neither."""


NOTHING_KEPT: Final = RequestRules(is_loading=False, is_saving=False, saves_decode=False)


@dataclass(slots=True, kw_only=True)
class PrefetchWait:
    """How long a request still waits for blocks to come nearer."""

    until_s: float
    num_asked: int
    """Blocks that the prefetch was asked for."""
    num_near: int = -1
    progress_s: float = 0.0
    is_turn: bool = False
    """Whether what others wait for was there already when it was asked for."""

    def goes_on(self, now_s: float, num_near: int, patience_s: float) -> bool:
        """Returns whether to wait on, now that `num_near` blocks can be had at once."""
        if num_near > self.num_near or not self.is_turn:
            self.num_near, self.progress_s = max(num_near, self.num_near), now_s
        return now_s < self.until_s and now_s < self.progress_s + patience_s


class RequestChain:
    """The hashes that the engine gave a request's blocks of one group, and the keys made of them.

    Keys are made once and kept: a request is looked up again in each step that it waits.
    """

    def __init__(self, hashes: Sequence[bytes], *, context: bytes, num_prompt_blocks: int) -> None:
        # The engine's own list, which grows while the request decodes.
        self._hashes = hashes
        self._context = context
        self._keys = NO_KEYS
        self._last_hash = b""
        self._run_hint = 0
        self._found_at = (0, b"")
        self._found: frozenset[bytes] | None = frozenset()
        self.num_prompt_blocks = num_prompt_blocks

    @property
    def num_blocks(self) -> int:
        """Returns how many whole blocks the request has by now."""
        return len(self._hashes)

    @property
    def found(self) -> frozenset[bytes]:
        """Returns the hashes of blocks that can be loaded, as far as the last lookup knows."""
        if self._found is None:
            start, mask = self._found_at
            self._found = frozenset(itertools.compress(self._hashes[start:], mask))
        return self._found

    def hashes(self, start: int, end: int) -> Sequence[bytes]:
        """Returns the engine's hashes of blocks from `start` to before `end`."""
        return self._hashes[start:end]

    def keys(self, namespace: Namespace, start: int, end: int) -> U8:
        """Returns uint8[end - start, 16]: the keys of blocks from `start` to before `end`."""
        num_made = len(self._keys)
        # Hashes are chained: while the last one is the same, so are all before it.
        if num_made and self._hashes[num_made - 1 : num_made] != [self._last_hash]:
            self._keys, num_made = NO_KEYS, 0
        if num_made < end:
            self._last_hash = self._hashes[end - 1]
            made = make_keys(namespace, self._hashes[num_made:end], self._context)
            self._keys = np.concatenate((self._keys, made))
        return self._keys[start:end]

    @property
    def found_at(self) -> tuple[int, bytes]:
        """Returns what tells one outcome of a lookup from another."""
        return self._found_at

    def set_found(self, start: int, mask: Mask) -> None:
        """Notes which of the blocks from `start` on can be loaded, and that no others can."""
        self._found_at, self._found = (start, mask.tobytes()), None

    def count_found(self, first_hash: bytes, last_hash: bytes, num_blocks: int) -> int:
        """Returns how many blocks of a run, from its first one on, can be loaded.

        first_hash, last_hash: of the ends of the run; one block at least.
        """
        start, mask = self._found_at
        last = start + num_blocks - 1
        if self._hashes[start : start + 1] != [first_hash]:
            return 0
        # Hashes are chained: between ends that are so far apart no other blocks can lie.
        if self._hashes[last : last + 1] != [last_hash]:
            return 0
        num_found = mask.find(0)
        return min(num_blocks, len(mask) if num_found < 0 else num_found)

    def find_run(self, block_hashes: Sequence[bytes]) -> tuple[int, int] | None:
        """Returns (start, end) of the blocks with these hashes, cut where they stop following."""
        start = self._find(block_hashes[0]) if block_hashes else None
        if start is None:
            return None
        end = start + len(block_hashes)
        # Hashes are chained, so that the last one tells of all before it.
        if self._hashes[end - 1 : end] == [block_hashes[-1]]:
            self._run_hint = end
            return start, end
        end = start + 1
        for block_hash in block_hashes[1:]:
            if end >= len(self._hashes) or self._hashes[end] != block_hash:
                break
            end += 1
        self._run_hint = end
        return start, end

    def find_each(self, block_hashes: Sequence[bytes]) -> list[int] | None:
        """Returns the index of each of these blocks, which may lie apart; None: one is unknown."""
        indices: list[int] = []
        for block_hash in block_hashes:
            index = self._find(block_hash)
            if index is None:
                return None
            indices.append(index)
            self._run_hint = index + 1
        return indices

    def _find(self, block_hash: bytes) -> int | None:
        # Runs mostly begin where the last one ended.
        for first in (self._run_hint, 0):
            with contextlib.suppress(ValueError):
                return self._hashes.index(block_hash, first)
        return None


def make_keys(namespace: Namespace, hashes: Sequence[bytes], context: bytes) -> U8:
    """Returns uint8[n, 16]: the engine's digests folded with the namespace and the context.

    Of a digest of 32 bytes (SHA-256) half is as good as a key, so that one fold does for all:
    there are thousands of blocks in a long prompt. Shorter ones are folded one by one.
    """
    if set(map(len, hashes)) <= {DIGEST_BYTES}:
        digests = np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(-1, DIGEST_BYTES)
        return digests[:, :KEY_BYTES] ^ namespace.key(_FOLD_DOMAIN + context)
    folded = b"".join(namespace.key(it + context).tobytes() for it in hashes)
    return np.frombuffer(folded, dtype=np.uint8).reshape(-1, KEY_BYTES)
