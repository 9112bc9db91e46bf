"""Hashes that are finer than a group's blocks."""

import pytest

from kvtier.adapters.vllm.block_hashes import BlockHashes, view_hashes

HASHES = [b"%d" % it for it in range(11)]


def test_the_last_hash_within_a_block_stands_for_the_block() -> None:
    view = BlockHashes(HASHES, 3)
    assert len(view) == 3
    assert list(view) == [b"2", b"5", b"8"]
    assert view[1:] == [b"5", b"8"]
    assert view[1:9] == [b"5", b"8"]
    assert view[5:] == []
    assert view[-1] == b"8"
    with pytest.raises(IndexError):
        view[3]


def test_a_block_is_found_by_its_hash_and_by_no_other() -> None:
    view = BlockHashes(HASHES, 3)
    assert [view.index(it) for it in (b"2", b"5", b"8")] == [0, 1, 2]
    assert view.index(b"8", 2) == 2
    for value, start in ((b"5", 2), (b"4", 0), (b"10", 0), (b"unknown", 0)):
        with pytest.raises(ValueError, match=r"within a block|not in list"):
            view.index(value, start)


def test_a_view_sees_what_is_generated_later() -> None:
    hashes = HASHES[:5]
    view = view_hashes(hashes, 3)
    assert len(view) == 1
    hashes.append(b"5")
    assert list(view) == [b"2", b"5"]


def test_one_hash_a_block_needs_no_view() -> None:
    assert view_hashes(HASHES, 1) is HASHES
