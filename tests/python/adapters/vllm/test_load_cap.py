"""How much of a hit is loaded, given how fast disk and engine are."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import vllm_engine  # noqa: F401

from kvtier.adapters.vllm.cut_reason import CutReason
from kvtier.adapters.vllm.group_lookup import GroupHit
from kvtier.adapters.vllm.load_cap import UNKNOWN_LOAD_S_MAX, Pace, cap_hit

HOST, DISK = 1, 2
BLOCK_TOKENS = 16
BLOCK_BYTES = 917_504
NUM_BLOCKS = 256
TOKENS_PER_S = 42_000.0
# 4,096 tokens take 97.5 ms to compute, and 107 ms to read at this rate.
SLOW_READ, FAST_READ = 2.2e9, 7e9


def hit_of(tiers: Any, *, window_blocks: int | None = None, start: int = 0) -> GroupHit:
    group: Any = SimpleNamespace(
        block_tokens=BLOCK_TOKENS,
        window_blocks=window_blocks,
        is_prefix=window_blocks is None,
        namespace=SimpleNamespace(block_bytes=BLOCK_BYTES),
    )
    keys = np.zeros((len(tiers), 16), dtype=np.uint8)
    return GroupHit(group=group, start=start, keys=keys, tiers=np.array(tiers, dtype=np.uint8))


def pace_of(read: float | None = SLOW_READ, **others: Any) -> Pace:
    known: dict[str, Any] = {
        "tokens_per_s": TOKENS_PER_S,
        "read_queue_bytes": 0,
        "compute_wait_s": 0.0,
        **others,
    }
    return Pace(read_bytes_per_s=read, **known)


def capped(hit: GroupHit, pace: Pace, margin: float = 1.0) -> tuple[int, CutReason | None]:
    found = cap_hit([hit], 0, pace, margin)
    return found.num_blocks[0], found.reason


ALL_ON_DISK = hit_of([DISK] * NUM_BLOCKS)


def test_a_lone_request_is_read_from_a_fast_disk_and_computed_beside_a_slow_one() -> None:
    assert capped(ALL_ON_DISK, pace_of(FAST_READ)) == (NUM_BLOCKS, None)
    assert capped(ALL_ON_DISK, pace_of(SLOW_READ)) == (0, CutReason.DISK)


def test_while_the_engine_is_busy_a_slow_disk_works_beside_it() -> None:
    assert capped(ALL_ON_DISK, pace_of(compute_wait_s=0.02)) == (NUM_BLOCKS, None)
    # Only a part is there by the time that the engine would have come so far.
    num_blocks, reason = capped(ALL_ON_DISK, pace_of(compute_wait_s=0.005))
    assert reason == CutReason.DISK
    assert 0 < num_blocks < NUM_BLOCKS
    load_s = num_blocks * BLOCK_BYTES / SLOW_READ
    assert load_s <= 0.005 + num_blocks * BLOCK_TOKENS / TOKENS_PER_S
    more_s = (num_blocks + 1) * BLOCK_BYTES / SLOW_READ
    assert more_s > 0.005 + (num_blocks + 1) * BLOCK_TOKENS / TOKENS_PER_S


def test_a_long_queue_before_the_disk_refuses_what_an_idle_one_would_deliver() -> None:
    queue_bytes = int(0.1 * FAST_READ)
    pace = pace_of(FAST_READ, read_queue_bytes=queue_bytes)
    assert capped(ALL_ON_DISK, pace) == (0, CutReason.QUEUE)
    pace = pace_of(FAST_READ, read_queue_bytes=queue_bytes, compute_wait_s=0.05)
    assert capped(ALL_ON_DISK, pace) == (NUM_BLOCKS, None)


def test_what_lies_in_host_memory_is_loaded_in_any_case() -> None:
    mixed = hit_of([HOST] * 100 + [DISK] * 156)
    busy = pace_of(read_queue_bytes=1 << 34)
    assert capped(mixed, busy)[0] == 100
    assert capped(hit_of([HOST] * 256), busy) == (256, None)
    # Host blocks behind a block on disk are of use only with it.
    assert capped(hit_of([DISK] + [HOST] * 255), pace_of()) == (256, None)
    assert capped(hit_of([DISK] + [HOST] * 255), pace_of(read_queue_bytes=1 << 34))[0] == 0


def test_the_margin_says_how_much_longer_a_load_may_take() -> None:
    assert capped(ALL_ON_DISK, pace_of(), margin=1.2) == (NUM_BLOCKS, None)
    assert capped(ALL_ON_DISK, pace_of(FAST_READ), margin=0.2) == (0, CutReason.DISK)


def test_with_unknown_rates_short_loads_go_and_the_first_long_one_is_computed() -> None:
    unknown = pace_of(tokens_per_s=None)
    assert capped(ALL_ON_DISK, unknown) == (NUM_BLOCKS, None)
    num_blocks = int(2 * UNKNOWN_LOAD_S_MAX * SLOW_READ / BLOCK_BYTES)
    assert capped(hit_of([DISK] * num_blocks), unknown) == (0, CutReason.UNKNOWN)
    assert capped(hit_of([HOST] * 7 + [DISK] * num_blocks), unknown) == (7, CutReason.UNKNOWN)
    assert capped(ALL_ON_DISK, pace_of(read=None)) == (NUM_BLOCKS, None)
    assert capped(ALL_ON_DISK, pace_of(read=None, tokens_per_s=None)) == (NUM_BLOCKS, None)


def test_several_groups_are_loaded_whole_or_not_at_all() -> None:
    window = hit_of([DISK] * NUM_BLOCKS, window_blocks=8)
    fast = cap_hit([ALL_ON_DISK, window], 0, pace_of(FAST_READ), 1.0)
    assert (fast.num_blocks, fast.reason) == ((NUM_BLOCKS, NUM_BLOCKS), None)
    slow = cap_hit([ALL_ON_DISK, window], 0, pace_of(SLOW_READ), 1.0)
    assert (slow.num_blocks, slow.reason) == ((0, 0), CutReason.DISK)


def test_a_window_costs_only_what_it_would_read() -> None:
    # 8 blocks of 256: reading them is worth it on any of these disks.
    window = hit_of([DISK] * NUM_BLOCKS, window_blocks=8)
    assert capped(window, pace_of(SLOW_READ)) == (NUM_BLOCKS, None)
    assert capped(window, pace_of(30e6)) == (0, CutReason.DISK)


@pytest.mark.parametrize("seed", range(20))
def test_no_longer_hit_would_have_kept_the_promise(seed: int) -> None:
    random = np.random.default_rng(seed)
    tiers = random.choice([HOST, DISK], 200, p=[0.4, 0.6])
    pace = pace_of(
        float(random.uniform(0.5e9, 5e9)),
        compute_wait_s=float(random.uniform(0, 0.05)),
        read_queue_bytes=int(random.integers(0, 1 << 28)),
    )
    num_blocks, _ = capped(hit_of(tiers), pace)

    def is_kept(end: int) -> bool:
        assert pace.read_bytes_per_s is not None
        num_far = int(np.count_nonzero(tiers[:end] == DISK))
        if num_far == 0:
            return True
        load_s = (pace.read_queue_bytes + num_far * BLOCK_BYTES) / pace.read_bytes_per_s
        return load_s <= pace.compute_wait_s + end * BLOCK_TOKENS / TOKENS_PER_S

    assert is_kept(num_blocks)
    assert not any(is_kept(end) for end in range(num_blocks + 1, 201))
