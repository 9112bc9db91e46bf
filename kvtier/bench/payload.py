"""Payloads of test blocks: a function of key, generation and position, quick to make and to check.

A pattern is constant after construction but for its scratch space: one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]

WORD_BYTES = 8
# Small enough for a core's own cache, large enough to hide what a call of numpy costs.
_PIECE_WORDS = 16384


@dataclass(frozen=True, kw_only=True)
class WrongCount:
    """How much of what was checked differs from what was put."""

    wrong_blocks: int
    wrong_bytes: int


def payload_words(keys: U8, *, generation: int = 0) -> U64:
    """One 64-bit word per key: differs between keys and between generations of a key.

    keys: uint8[num_blocks, 16].
    """
    halves = np.ascontiguousarray(keys).view(np.uint64).reshape(-1, 2)
    salt = np.uint64(generation * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
    return _mix(_mix(halves[:, 0] ^ salt) + halves[:, 1])


class PayloadPattern:
    """A random pattern of one block's length; a block's payload is the pattern XOR its word.

    The pattern makes each place in a block different, so nothing passes that was shifted or
    reordered; the word makes each block and each generation different in all its words, so
    nothing passes that belongs to another block or to an earlier content of the same one.
    """

    def __init__(self, block_bytes: int, *, seed: int = 20250225) -> None:
        self._block_bytes = block_bytes
        self._num_words = block_bytes // WORD_BYTES
        self._num_tail_bytes = block_bytes % WORD_BYTES
        generator = np.random.Generator(np.random.PCG64(seed))
        # One word more than needed: the last bytes of a block that is no multiple of a word.
        self._pattern = generator.integers(
            0, 1 << 64, size=self._num_words + 1, dtype=np.uint64, endpoint=False
        )
        self._scratch = np.empty(_PIECE_WORDS, dtype=np.uint64)
        self._is_equal = np.empty(_PIECE_WORDS, dtype=np.bool_)

    def fill(self, words: U64, out: U8) -> None:
        """Writes the payloads of `words` to `out`: uint8[num_blocks, block_bytes]."""
        if self._num_words:
            target = self._word_view(out)
            for rows, columns in self._pieces(len(words)):
                np.bitwise_xor(self._pattern[columns], words[rows, None], out=target[rows, columns])
        if self._num_tail_bytes:
            out[:, self._num_words * WORD_BYTES :] = self._tail(words)

    def check(self, words: U64, data: U8) -> WrongCount:
        """Compares uint8[num_blocks, block_bytes] with the payloads of `words`, byte for byte."""
        is_right = np.ones(len(words), dtype=np.bool_)
        if self._num_words:
            source = self._word_view(data)
            for rows, columns in self._pieces(len(words)):
                is_right[rows] &= self._is_piece_right(words[rows, None], source, rows, columns)
        if self._num_tail_bytes:
            tail = data[:, self._num_words * WORD_BYTES :]
            is_right &= (tail == self._tail(words)).all(axis=1)
        wrong_rows = np.flatnonzero(~is_right)
        wrong_bytes = 0
        if len(wrong_rows):
            expected = np.empty((1, self._block_bytes), dtype=np.uint8)
            for row in wrong_rows:
                self.fill(words[row : row + 1], expected)
                wrong_bytes += int(np.count_nonzero(expected[0] != data[row]))
        return WrongCount(wrong_blocks=len(wrong_rows), wrong_bytes=wrong_bytes)

    def _is_piece_right(
        self, words: U64, source: U64, rows: slice, columns: slice
    ) -> npt.NDArray[np.bool_]:
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        num_words = shape[0] * shape[1]
        scratch = self._scratch[:num_words].reshape(shape)
        is_equal = self._is_equal[:num_words].reshape(shape)
        np.bitwise_xor(source[rows, columns], self._pattern[columns], out=scratch)
        np.equal(scratch, words, out=is_equal)
        return np.asarray(is_equal.all(axis=1))

    def _pieces(self, num_blocks: int) -> Iterator[tuple[slice, slice]]:
        """Rows and columns that fit the scratch space and cover all whole words."""
        rows_per_piece = max(1, _PIECE_WORDS // self._num_words)
        for row in range(0, num_blocks, rows_per_piece):
            rows = slice(row, min(row + rows_per_piece, num_blocks))
            for column in range(0, self._num_words, _PIECE_WORDS):
                yield rows, slice(column, min(column + _PIECE_WORDS, self._num_words))

    def _word_view(self, data: U8) -> U64:
        return data[:, : self._num_words * WORD_BYTES].view(np.uint64)

    def _tail(self, words: U64) -> U8:
        tail_words: U64 = (self._pattern[-1] ^ words).reshape(-1, 1)
        tail: U8 = tail_words.view(np.uint8)[:, : self._num_tail_bytes]
        return tail


def _mix(values: U64) -> U64:
    """The finaliser of SplitMix64: each bit of the input reaches each bit of the output."""
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
