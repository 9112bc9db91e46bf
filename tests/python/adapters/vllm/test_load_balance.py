"""Disk and engine share the work of prompts that come back: a played engine with the real cap."""

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import vllm_engine  # noqa: F401

from kvtier.adapters.vllm.engine_pace import EnginePace
from kvtier.adapters.vllm.group_lookup import GroupHit
from kvtier.adapters.vllm.hit_limiter import HitLimiter

HOST, DISK = 1, 2
BLOCK_TOKENS, BLOCK_BYTES, NUM_BLOCKS = 16, 917_504, 256
PROMPT_TOKENS = BLOCK_TOKENS * NUM_BLOCKS
TOKENS_PER_S = 48_000.0
STEP_S, STEP_TOKENS = 0.004, 8192
NUM_REQUESTS, CONCURRENT = 64, 32
GROUP: Any = SimpleNamespace(
    block_tokens=BLOCK_TOKENS,
    window_blocks=None,
    is_prefix=True,
    namespace=SimpleNamespace(block_bytes=BLOCK_BYTES),
)


@dataclass
class Visit:
    name: str
    asked_s: float = 0.0
    told_s: float = 0.0
    left: int = PROMPT_TOKENS
    reads_until_s: float | None = None
    num_read: int = 0


@dataclass
class Played:
    """vLLM's scheduler and its GPU, one disk, and prompts that all lie on it."""

    read_bytes_per_s: float
    load_cap: float | None = 1.0
    steps_ahead: int = 2
    now_s: float = 0.0
    disk_free_s: float = 0.0
    steps: deque[tuple[float, list[Visit]]] = field(default_factory=deque)
    num_loaded: int = 0

    def __post_init__(self) -> None:
        self.pace = EnginePace(steps_ahead=self.steps_ahead, clock_s=lambda: self.now_s)
        tiers = {"disk": {"expected_read_bytes_per_s": self.read_bytes_per_s}}
        engine: Any = SimpleNamespace(
            settings=SimpleNamespace(load_cap=self.load_cap),
            gain_tokens_min=64,
            store=SimpleNamespace(stats=lambda: {"tiers": tiers}),
        )
        self.limiter = HitLimiter(engine, self.pace, lambda: self.now_s)
        self.engine_free_s = 0.0

    def visit(self, num_requests: int, concurrent: int) -> list[Visit]:
        """Asks so many prompts, some at a time, and returns them with their times."""
        coming = deque(Visit(f"{self.now_s} {it}") for it in range(num_requests))
        waiting: deque[Visit] = deque()
        running: list[Visit] = []
        ended: list[Visit] = []
        while len(ended) < num_requests:
            while coming and len(waiting) + len(running) < concurrent:
                waiting.append(coming.popleft())
                waiting[-1].asked_s = self.now_s
                self.pace.begin(waiting[-1].name)
            planned = self._plan(waiting, running)
            if len(self.steps) >= self.steps_ahead or (not planned and self.steps):
                end_s, done = self.steps.popleft()
                self.now_s = max(self.now_s, end_s)
                for it in done:
                    it.told_s = self.now_s
                    running.remove(it)
                    ended.append(it)
                    self.pace.end(it.name)
            elif not planned:
                self.now_s += 0.002
        return ended

    def _plan(self, waiting: deque[Visit], running: list[Visit]) -> bool:
        budget = STEP_TOKENS
        scheduled: dict[str, int] = {}
        done: list[Visit] = []

        def schedule(visit: Visit) -> None:
            nonlocal budget
            num_now = min(visit.left, budget)
            if num_now > 0:
                scheduled[visit.name] = num_now
                visit.left -= num_now
                budget -= num_now
                if visit.left == 0:
                    done.append(visit)

        for visit in running:
            schedule(visit)
        for visit in list(waiting):
            if budget == 0:
                break
            num_loaded = self._num_loaded(visit)
            if num_loaded is None:
                continue
            waiting.remove(visit)
            running.append(visit)
            visit.left = max(1, PROMPT_TOKENS - num_loaded)
            self.num_loaded += num_loaded > 0
            self.pace.admit(visit.name, visit.left)
            self.limiter.note_coming(visit.name, 0)
            schedule(visit)
        if not scheduled:
            return False
        self.pace.note_step(scheduled)
        began_s = max(self.now_s, self.engine_free_s)
        self.engine_free_s = began_s + STEP_S + sum(scheduled.values()) / TOKENS_PER_S
        self.steps.append((self.engine_free_s, done))
        return True

    def _num_loaded(self, visit: Visit) -> int | None:
        """Returns how many tokens come from disk; None: they are on their way."""
        tiers = np.full(NUM_BLOCKS, DISK, dtype=np.uint8)
        if visit.reads_until_s is not None:
            left_s = max(0.0, visit.reads_until_s - self.now_s)
            num_left = int(np.ceil(left_s * self.read_bytes_per_s / BLOCK_BYTES))
            tiers[: max(0, visit.num_read - num_left)] = HOST
        keys = np.zeros((NUM_BLOCKS, 16), dtype=np.uint8)
        hit = GroupHit(group=GROUP, start=0, keys=keys, tiers=tiers)
        kept, _ = self.limiter.limit(visit.name, [hit], 0)
        if not kept:
            return 0
        far = int(np.count_nonzero(kept[0].tiers == DISK))
        num_near = len(kept[0].tiers) - far
        # There is one prefetch for each request: what it did not bring is computed.
        if far == 0 or (visit.reads_until_s is not None and num_near == visit.num_read):
            return num_near * BLOCK_TOKENS
        if visit.reads_until_s is None:
            begin_s = max(self.now_s, self.disk_free_s)
            self.disk_free_s = begin_s + far * BLOCK_BYTES / self.read_bytes_per_s
            visit.reads_until_s = self.disk_free_s
            visit.num_read = far
        self.limiter.note_coming(visit.name, far * BLOCK_BYTES)
        return None


def learn(played: Played) -> Played:
    """Lets the engine compute some prompts, as it does before anything comes back."""
    rate, played.read_bytes_per_s = played.read_bytes_per_s, 1.0
    played.limiter._read_bytes_per_s = 1.0
    played.limiter._rate_until_s = float("inf")
    played.visit(8, 8)
    played.limiter._read_bytes_per_s = played.read_bytes_per_s = rate
    played.num_loaded = 0
    return played


def measure(visits: list[Visit]) -> tuple[float, float, float]:
    """Returns how long all took, and mean and worst time to the first token, in seconds."""
    ttft_s = [it.told_s - it.asked_s for it in visits]
    wall_s = max(it.told_s for it in visits) - min(it.asked_s for it in visits)
    return wall_s, sum(ttft_s) / len(ttft_s), max(ttft_s)


@pytest.mark.parametrize(("steps_ahead", "share"), [(1, 0.65), (2, 0.85)])
@pytest.mark.parametrize("read_bytes_per_s", [1.1e9, 2.2e9, 7e9])
def test_under_load_the_disk_takes_what_it_can_and_nobody_waits_longer(
    read_bytes_per_s: float, steps_ahead: int, share: float
) -> None:
    computed = learn(Played(1.0, steps_ahead=steps_ahead))
    compute_s, compute_mean_s, compute_max_s = measure(computed.visit(NUM_REQUESTS, CONCURRENT))
    assert computed.num_loaded == 0
    played = learn(Played(read_bytes_per_s, steps_ahead=steps_ahead))
    wall_s, mean_s, max_s = measure(played.visit(NUM_REQUESTS, CONCURRENT))
    # Both work all the time: this is what the two together could do at best.
    request_bytes = NUM_BLOCKS * BLOCK_BYTES
    best = 1 + read_bytes_per_s / request_bytes * compute_s / NUM_REQUESTS
    assert compute_s / wall_s > 1 + share * (best - 1)
    assert mean_s < compute_mean_s
    assert max_s < 1.05 * compute_max_s


@pytest.mark.parametrize("steps_ahead", [1, 2])
@pytest.mark.parametrize(("read_bytes_per_s", "is_read"), [(2.0e9, False), (7e9, True)])
def test_alone_a_prompt_is_read_or_computed_whichever_is_faster(
    read_bytes_per_s: float, is_read: bool, steps_ahead: int
) -> None:
    played = learn(Played(read_bytes_per_s, steps_ahead=steps_ahead))
    compute_s = STEP_S + PROMPT_TOKENS / TOKENS_PER_S
    read_s = NUM_BLOCKS * BLOCK_BYTES / read_bytes_per_s
    for _ in range(5):
        played.now_s += 10.0
        (visit,) = played.visit(1, 1)
        fastest_s = min(compute_s, read_s + STEP_S)
        assert visit.told_s - visit.asked_s < 1.02 * fastest_s + 0.003
    assert played.num_loaded == (5 if is_read else 0)


def test_without_a_cap_a_slow_disk_holds_everybody_up() -> None:
    computed = learn(Played(1.0))
    compute_s, *_ = measure(computed.visit(12, 6))
    slow = Played(0.3e9, load_cap=None)
    slow_s, *_ = measure(slow.visit(12, 6))
    assert slow_s > 3 * compute_s
    capped = learn(Played(0.3e9))
    capped_s, *_ = measure(capped.visit(12, 6))
    assert capped_s < 1.02 * compute_s
