"""A state machine of a store with too little room, on a disk that fails, lies and stalls.

Blocks come and go here, so the model knows what may be true: which generations of a block may still
be delivered, and that deleted, cleared and foreign ones may not. One thread.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from simulated_store import (
    MIB,
    SPACES,
    BlockId,
    SimulatedStore,
    StatisticsCheck,
    run_of_blocks,
)

import kvtier

HOST_BYTES = (0, MIB, 2 * MIB)
DISK_BYTES = (3 * MIB, 5 * MIB, 8 * MIB)
FAULTS = {
    "read_error": 0.1,
    "write_error": 0.05,
    "read_flip": 0.1,
    "write_flip": 0.05,
    "misdirected_read": 0.1,
    "misdirected_write": 0.05,
    "short_transfer": 0.1,
    "torn_write": 0.05,
    "sync_error": 0.1,
}
spaces = st.integers(0, len(SPACES) - 1)
chains = st.integers(0, 4)
depths = st.integers(0, 9)
starts = st.just(0) | depths
lengths = st.integers(1, 16)
picks = st.integers(0, 11)
"""Which earlier put is meant, the latest first; the last pick means a chain that may be unknown."""
DISK_ERRORS = (kvtier.TierIOError, kvtier.TimeoutError)


class TightStoreMachine(RuleBasedStateMachine):
    """Rules, model and checks."""

    @initialize(
        seed=st.integers(0, 2**32 - 1),
        host_bytes=st.sampled_from(HOST_BYTES),
        disk_bytes=st.sampled_from(DISK_BYTES),
    )
    def start(
        self, seed: int, host_bytes: int = HOST_BYTES[1], disk_bytes: int = DISK_BYTES[0]
    ) -> None:
        self.sim = SimulatedStore(seed=seed, host_bytes=host_bytes, disk_bytes=disk_bytes)
        self.statistics = StatisticsCheck()
        self.possible: dict[BlockId, set[int]] = {}
        self.generations: dict[BlockId, int] = {}
        self.leases: list[tuple[kvtier.Lease, list[tuple[BlockId, int]], float]] = []
        self.pinned: set[BlockId] = set()
        self.num_pin_failures = 0.0
        self.faults: set[str] = set()
        self.is_stalled = False
        self.is_damaged = False
        self.is_lying = False
        self.puts: list[tuple[int, int]] = []

    def teardown(self) -> None:
        if hasattr(self, "sim"):
            self._end_trouble()
            self.sim.close()

    @rule(space=spaces, chain=chains, first=starts, num_blocks=lengths)
    def put(self, space: int, chain: int, first: int, num_blocks: int) -> None:
        blocks = run_of_blocks(space, chain, first, num_blocks)
        for block in blocks:
            self.possible.setdefault(block, set()).add(self.generations.setdefault(block, 0))
        data = [it.payload(self.generations[it]) for it in blocks]
        outcomes = self.sim.put(blocks, data)
        self.puts.append((space, chain))
        allowed = {kvtier.Outcome.DONE, kvtier.Outcome.DECLINED}
        if self._has_trouble():
            allowed |= {kvtier.Outcome.TIMEOUT, kvtier.Outcome.FAILED}
        assert set(outcomes) <= allowed

    @rule(space=spaces, chain=chains)
    def put_much(self, space: int, chain: int) -> None:
        """So much that something must go; other chains than the single ones."""
        for more in range(3):
            for first in (0, 8, 16):
                self.put(space=space, chain=5 + chain + more, first=first, num_blocks=8)

    @rule(pick=picks, first=starts, num_blocks=lengths, is_prefix=st.booleans())
    def get(self, pick: int, first: int, num_blocks: int, is_prefix: bool) -> None:
        blocks = self._pick(pick, first, num_blocks)
        found = self.sim.lookup(blocks, is_prefix=is_prefix)
        result, out = self.sim.get(blocks, is_prefix=is_prefix)
        for block, is_done, got, tier in zip(blocks, result.mask, out, found, strict=True):
            # Exactly one of the allowed generations, whole.
            is_right = not is_done or any(
                got.tobytes() == block.payload(generation).tobytes()
                for generation in self.possible.get(block, ())
            )
            assert is_right, f"{block} has wrong bytes"
            assert tier != 0 or not is_done, f"{block} came although it was not there"
        if not self._has_trouble() and not self.is_damaged:
            assert result.mask.tolist() == [tier != 0 for tier in found]

    @rule(pick=picks)
    def get_all(self, pick: int) -> None:
        self.get(pick=pick, first=0, num_blocks=24, is_prefix=True)

    @rule(pick=picks, num_blocks=lengths, ttl_s=st.sampled_from([0.0, 3.0, 3600.0]))
    def lease(self, pick: int, num_blocks: int, ttl_s: float) -> None:
        blocks = self._pick(pick, 0, num_blocks)
        lease = self.sim.lease(blocks, ttl_s=ttl_s, is_prefix=True)
        if lease.num_blocks == 0:
            assert lease.release() is False
            return
        tiers = list(zip(blocks, lease.tiers.tolist(), strict=True))[: lease.num_blocks]
        self.leases.append((lease, tiers, self._num_failures()))

    @rule(index=st.integers(0, 7))
    def release(self, index: int) -> None:
        if index < len(self.leases):
            lease, _, _ = self.leases.pop(index)
            is_live = lease.expires_in_s > 0
            assert lease.release() is is_live
            assert lease.release() is False

    @rule(pick=picks, num_blocks=lengths)
    def pin(self, pick: int, num_blocks: int) -> None:
        blocks = self._pick(pick, 0, num_blocks)
        num_missing = self.sim.lookup(blocks, is_prefix=True).count(0)
        num_pinned = self.sim.pin(blocks)
        assert num_pinned <= num_blocks - num_missing
        self.pinned.update(blocks[:num_pinned])

    @rule(pick=picks, num_blocks=lengths)
    def unpin(self, pick: int, num_blocks: int) -> None:
        blocks = self._pick(pick, 0, num_blocks)
        assert self.sim.unpin(blocks) <= num_blocks
        self.pinned.difference_update(blocks)

    @rule(seconds=st.sampled_from([0.01, 1.0, 6.0]))
    def advance(self, seconds: float) -> None:
        self.sim.world.advance_s(seconds)

    @rule(pick=picks, depth=st.integers(0, 9))
    def delete(self, pick: int, depth: int) -> None:
        (block,) = self._pick(pick, depth, 1)
        self.pinned -= {it for it in self.pinned if it.is_at_or_below(block)}
        is_protected = self._has_leased_descendant(block)
        try:
            num_deleted = self.sim.delete([block])
        except DISK_ERRORS:
            assert self._has_trouble()
            return
        is_there = self.sim.lookup([block]) != [0]
        if is_protected:
            # A lease that failed loads ended is over, though its time is not.
            assert is_there or self._has_trouble() or self.is_damaged
        else:
            assert not is_there
            self._forget(block)
        assert num_deleted <= 24 * 9

    @rule()
    def flush(self) -> None:
        try:
            self.sim.store.flush()
        except DISK_ERRORS:
            assert self._has_trouble()

    @rule(tiers=st.sampled_from([("host", "disk"), ("host",), ("disk",)]))
    def clear(self, tiers: tuple[str, ...]) -> None:
        self.leases.clear()
        self.pinned.clear()
        try:
            self.sim.store.clear(tiers)
        except DISK_ERRORS:
            assert self._has_trouble()
            return
        if len(tiers) == 2:
            for block in list(self.possible):
                assert self.sim.lookup([block]) == [0]
                self._forget(block)

    @rule(is_power_lost=st.booleans())
    def crash(self, is_power_lost: bool) -> None:
        self._end_trouble()
        # What was under way may be torn, which only shows when it is read.
        self.is_damaged = True
        self.sim.crash(is_power_lost=is_power_lost)
        self._open()

    @rule(disk_bytes=st.sampled_from(DISK_BYTES))
    def reopen(self, disk_bytes: int) -> None:
        self._end_trouble()
        self.sim.close()
        self.sim.disk_bytes = disk_bytes
        self._open()

    @rule(names=st.sets(st.sampled_from(sorted(FAULTS)), min_size=1))
    def fail(self, names: set[str]) -> None:
        self.faults |= names
        self.is_damaged = True
        self.is_lying |= "misdirected_write" in names
        for name in names:
            self.sim.world.set_fault(name, FAULTS[name])

    @precondition(lambda self: self._has_trouble())
    @rule()
    def recover_from_trouble(self) -> None:
        self._end_trouble()
        self.sim.world.advance_s(10.0)

    @precondition(lambda self: not self.is_stalled)
    @rule()
    def stall(self) -> None:
        self.is_stalled = True
        self.sim.world.set_stalled(True)

    @precondition(lambda self: self.is_stalled)
    @rule(pick=picks, num_blocks=lengths)
    def blocks_in_host_are_served_during_a_stall(self, pick: int, num_blocks: int) -> None:
        blocks = self._pick(pick, 0, num_blocks)
        tiers = self.sim.lookup(blocks, is_prefix=True)
        result, _ = self.sim.get(blocks, is_prefix=True)
        num_in_host = next((i for i, tier in enumerate(tiers) if tier != 1), len(tiers))
        assert result.num_blocks >= num_in_host

    @invariant()
    def leased_blocks_stay(self) -> None:
        if not hasattr(self, "sim"):
            return
        for lease, blocks, num_failures in self.leases:
            if lease.expires_in_s <= 0 or self._num_failures() != num_failures:
                continue
            for block, tier in blocks:
                found = self.sim.lookup([block])[0]
                if tier == 1:
                    assert found == 1, f"{block} left host although it is leased"
                elif self._disk_health() in {"ok", "degraded"}:
                    assert found != 0, f"{block} is gone although it is leased"

    @invariant()
    def pinned_blocks_stay(self) -> None:
        if not hasattr(self, "sim"):
            return
        num_failures = self._num_failures()
        if num_failures != self.num_pin_failures:
            self.num_pin_failures = num_failures
            self.pinned.clear()
        if self._disk_health() in {"ok", "degraded"}:
            for block in self.pinned:
                assert self.sim.lookup([block]) != [0], f"{block} is gone although it is pinned"

    @invariant()
    def bounds_hold_and_numbers_add_up(self) -> None:
        if not hasattr(self, "sim"):
            return
        self.statistics.check(self.sim.store)
        assert self.sim.world.allocated_bytes() <= self.sim.disk_bytes
        tiers = self.sim.store.stats()["tiers"]
        assert isinstance(tiers, dict)
        assert tiers["host"]["pinned_bytes"] * 4 <= self.sim.host_bytes
        assert tiers["disk"]["pinned_bytes"] * 4 <= self.sim.disk_bytes
        assert all("kvtier" in name for name in self.sim.world.file_names())

    def _pick(self, pick: int, first: int, num_blocks: int) -> list[BlockId]:
        is_known = bool(self.puts) and pick < 11
        space, chain = self.puts[-1 - pick % len(self.puts)] if is_known else (pick % 5, 4)
        return run_of_blocks(space, chain, first, num_blocks)

    def _open(self) -> None:
        self.sim.open()
        self.statistics.forget()
        self.leases.clear()
        self.pinned.clear()
        self.num_pin_failures = 0.0

    def _end_trouble(self) -> None:
        self.faults.clear()
        for name in FAULTS:
            self.sim.world.set_fault(name, 0.0)
        self.is_stalled = False
        self.sim.world.set_stalled(False)

    def _has_trouble(self) -> bool:
        return bool(self.faults) or self.is_stalled or self._disk_health() != "ok"

    def _disk_health(self) -> str:
        tiers = self.sim.store.stats()["tiers"]
        assert isinstance(tiers, dict)
        return str(tiers["disk"]["health"])

    def _num_failures(self) -> float:
        """Corruption and failed loads end leases and take blocks along."""
        counters = self.statistics.check(self.sim.store)
        return counters["disk.load_failures"] + counters["disk.corrupt"]

    def _leased_blocks(self) -> set[BlockId]:
        return {
            block
            for lease, blocks, _ in self.leases
            if lease.expires_in_s > 0
            for block, _ in blocks
        }

    def _has_leased_descendant(self, block: BlockId) -> bool:
        return any(
            (it.space, it.chain) == (block.space, block.chain) and it.depth >= block.depth
            for it in self._leased_blocks()
        )

    def _forget(self, block: BlockId) -> None:
        # A removal that a lying disk wrote elsewhere cannot last: the block's own bytes come back.
        if not self.is_lying:
            self.possible.pop(block, None)
        self.generations[block] = self.generations.get(block, 0) + 1
