"""The payload checker: every kind of wrong block must be caught, and the right one passes."""

from __future__ import annotations

import numpy as np
import pytest

from kvtier.bench.payload import PayloadPattern, WrongCount, payload_words

RIGHT = WrongCount(wrong_blocks=0, wrong_bytes=0)
SIZES = [1, 7, 8, 9, 64, 100, 4096, 16384 * 8, 16384 * 8 + 5, 300_001]
NUM_BLOCKS = 5


def make(block_bytes: int, *, generation: int = 0) -> tuple[PayloadPattern, np.ndarray, np.ndarray]:
    keys = np.random.default_rng(7).integers(0, 256, (NUM_BLOCKS, 16), dtype=np.uint8)
    words = payload_words(keys, generation=generation)
    pattern = PayloadPattern(block_bytes)
    data = np.zeros((NUM_BLOCKS, block_bytes), dtype=np.uint8)
    pattern.fill(words, data)
    return pattern, words, data


@pytest.mark.parametrize("block_bytes", SIZES)
def test_right_payloads_pass_and_are_the_same_each_time(block_bytes: int) -> None:
    pattern, words, data = make(block_bytes)
    assert pattern.check(words, data) == RIGHT
    again = make(block_bytes)[2]
    assert (data == again).all()


@pytest.mark.parametrize("block_bytes", SIZES)
def test_one_flipped_bit_is_caught_wherever_it_is(block_bytes: int) -> None:
    pattern, words, data = make(block_bytes)
    for position in {0, block_bytes // 2, block_bytes - 1}:
        for bit in (0, 7):
            data[3, position] ^= 1 << bit
            assert pattern.check(words, data) == WrongCount(wrong_blocks=1, wrong_bytes=1)
            data[3, position] ^= 1 << bit
    assert pattern.check(words, data) == RIGHT


@pytest.mark.parametrize("block_bytes", [size for size in SIZES if size >= 64])
def test_swapped_shifted_stale_and_constant_blocks_are_caught(block_bytes: int) -> None:
    pattern, words, data = make(block_bytes)
    swapped = data[[1, 0, 2, 3, 4]]
    assert pattern.check(words, swapped).wrong_blocks == 2
    for shift_bytes in (1, 8, block_bytes // 2):
        shifted = np.roll(data, shift_bytes, axis=1)
        assert pattern.check(words, shifted).wrong_blocks == NUM_BLOCKS
    stale = make(block_bytes, generation=1)[2]
    wrong = pattern.check(words, stale)
    assert wrong.wrong_blocks == NUM_BLOCKS
    assert wrong.wrong_bytes > 0.9 * data.nbytes
    assert pattern.check(words, np.zeros_like(data)).wrong_blocks == NUM_BLOCKS


def test_a_page_from_elsewhere_is_caught() -> None:
    pattern, words, data = make(64 << 10)
    from_other_block = data.copy()
    from_other_block[0, 4096:8192] = data[1, 4096:8192]
    assert pattern.check(words, from_other_block).wrong_blocks == 1
    from_other_place = data.copy()
    from_other_place[0, 4096:8192] = data[0, 8192:12288]
    assert pattern.check(words, from_other_place).wrong_blocks == 1


def test_every_key_and_generation_has_its_own_word() -> None:
    keys = np.zeros((4096, 16), dtype=np.uint8)
    keys[:, 3] = np.arange(4096) % 256
    keys[:, 12] = np.arange(4096) // 256
    words = np.concatenate([payload_words(keys, generation=g) for g in range(3)])
    assert len(np.unique(words)) == len(words)
