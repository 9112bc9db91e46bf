"""A state machine of a store with room for everything: its dictionary model is exact.

Nothing is ever evicted and the disk never fails, so every answer has one right value: what was put
is found, what was flushed survives a crash, what was deleted stays away. Rules can also be called
by hand on `ExactStoreMachine(seed)`. One thread.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from simulated_store import (
    MIB,
    SLOT_BYTES,
    SPACES,
    BlockId,
    SimulatedStore,
    StatisticsCheck,
    run_of_blocks,
)

import kvtier

DISK_BYTES = (64 * MIB, 96 * MIB)
spaces = st.integers(0, len(SPACES) - 1)
chains = st.integers(0, 2)
depths = st.integers(0, 7)
starts = st.just(0) | depths
lengths = st.integers(1, 8)
picks = st.integers(0, 11)
"""Which earlier put is meant, the latest first; the last pick means a chain that may be unknown."""


@dataclass
class Stored:
    """A block that must be there."""

    generation: int
    parent: BlockId | None
    is_offered: bool = True
    """Disk was asked to take it: it outlives a close."""
    is_durable: bool = False
    """It outlives a crash."""
    num_pins: int = 0
    crash_pins: set[int] = field(default_factory=lambda: {0})
    """What may be found after a crash: every number since the last flush."""

    def set_pins(self, num_pins: int) -> None:
        self.num_pins = num_pins
        self.crash_pins.add(num_pins)


class ExactStoreMachine(RuleBasedStateMachine):
    """Rules, model and checks."""

    @initialize(
        seed=st.integers(0, 2**32 - 1), host_bytes=st.just(16 * MIB), no_allocate=st.booleans()
    )
    def start(self, seed: int, host_bytes: int = 16 * MIB, no_allocate: bool = False) -> None:
        self.sim = SimulatedStore(
            seed=seed, host_bytes=host_bytes, disk_bytes=DISK_BYTES[0], staging_bytes=4 * MIB
        )
        self.sim.world.set_fault("allocate_unsupported", float(no_allocate))
        self.statistics = StatisticsCheck()
        self.stored: dict[BlockId, Stored] = {}
        self.generations: dict[BlockId, int] = {}
        self.leases: list[tuple[kvtier.Lease, list[BlockId]]] = []
        self.puts: list[tuple[int, int]] = []

    def teardown(self) -> None:
        if hasattr(self, "sim"):
            self.sim.close()

    @rule(space=spaces, chain=chains, first=starts, num_blocks=lengths, is_chain=st.booleans())
    def put(self, space: int, chain: int, first: int, num_blocks: int, is_chain: bool) -> None:
        blocks = run_of_blocks(space, chain, first, num_blocks)
        data = [it.payload(self.generations.setdefault(it, 0)) for it in blocks]
        outcomes = self.sim.put(blocks, data, is_chain=is_chain)
        self.puts.append((space, chain))
        parent = blocks[0].parent if is_chain else None
        if parent is not None and parent not in self.stored:
            assert set(outcomes) == {kvtier.Outcome.DECLINED}
            return
        assert set(outcomes) == {kvtier.Outcome.DONE}
        for block in blocks:
            if block not in self.stored:
                self.stored[block] = Stored(self.generations[block], parent)
            parent = block if is_chain else None
        self._note_offered(blocks)

    @rule(pick=picks, first=starts, num_blocks=lengths, is_prefix=st.booleans())
    def get(self, pick: int, first: int, num_blocks: int, is_prefix: bool) -> None:
        self._check_get(self._pick(pick, first, num_blocks), is_prefix)

    @rule(pick=picks, first=depths, num_blocks=lengths, is_prefix=st.booleans())
    def lookup(self, pick: int, first: int, num_blocks: int, is_prefix: bool) -> None:
        blocks = self._pick(pick, first, num_blocks)
        before = self.statistics.check(self.sim.store)
        tiers = self.sim.lookup(blocks, is_prefix=is_prefix)
        assert [tier != 0 for tier in tiers] == self._expected_mask(blocks, is_prefix)
        after = self.statistics.check(self.sim.store)
        assert after.pop("lookups") == before.pop("lookups") + 1
        assert after.pop("lookup_blocks") == before.pop("lookup_blocks") + num_blocks
        background = ("bytes_written", "inserted")
        for name in before:
            assert name.endswith(background) or after[name] == before[name], name

    @rule(
        pick=picks,
        first=depths,
        num_blocks=lengths,
        is_prefix=st.booleans(),
        ttl_s=st.sampled_from([0.0, 1.0, 5.0, 3600.0]),
    )
    def lease(self, pick: int, first: int, num_blocks: int, is_prefix: bool, ttl_s: float) -> None:
        blocks = self._pick(pick, first, num_blocks)
        lease = self.sim.lease(blocks, ttl_s=ttl_s, is_prefix=is_prefix)
        assert lease.mask.tolist() == self._expected_mask(blocks, is_prefix)
        assert 0 <= lease.expires_in_s <= ttl_s
        leased = [it for it, is_leased in zip(blocks, lease.mask, strict=True) if is_leased]
        if leased:
            self.leases.append((lease, leased))
        else:
            assert lease.release() is False

    @rule(index=st.integers(0, 7))
    def release(self, index: int) -> None:
        if index >= len(self.leases):
            return
        lease, _ = self.leases.pop(index)
        is_live = lease.expires_in_s > 0
        assert lease.release() is is_live
        assert lease.release() is False
        assert lease.expires_in_s == 0

    @rule(seconds=st.sampled_from([0.001, 0.1, 2.0, 7.0]))
    def advance(self, seconds: float) -> None:
        self.sim.world.advance_s(seconds)
        for lease, _ in self.leases:
            assert lease.expires_in_s >= 0

    @rule(pick=picks, first=starts, num_blocks=lengths)
    def pin(self, pick: int, first: int, num_blocks: int) -> None:
        blocks = self._pick(pick, first, num_blocks)
        pinned = blocks[: self._expected_mask(blocks, is_prefix=True).count(True)]
        assert self.sim.pin(blocks) == len(pinned)
        for block in pinned:
            self.stored[block].set_pins(self.stored[block].num_pins + 1)
        self._note_offered(pinned)

    @rule(pick=picks, first=starts, num_blocks=lengths)
    def unpin(self, pick: int, first: int, num_blocks: int) -> None:
        blocks = self._pick(pick, first, num_blocks)
        pinned = [it for it in blocks if it in self.stored and self.stored[it].num_pins > 0]
        assert self.sim.unpin(blocks) == len(pinned)
        for block in pinned:
            self.stored[block].set_pins(self.stored[block].num_pins - 1)

    @rule(pick=picks, depth=depths, num_blocks=st.integers(1, 2))
    def delete(self, pick: int, depth: int, num_blocks: int) -> None:
        blocks = self._pick(pick, depth, num_blocks)
        expected: set[BlockId] = set()
        leased = self._leased_blocks()
        for block in blocks:
            expected |= self._removable(block, leased)
        assert self.sim.delete(blocks) == len(expected)
        for block in expected:
            self._forget(block)
        # Never again under these keys, wherever an older copy may lie.
        for block in blocks:
            if block not in self.stored and block not in expected:
                self.generations[block] = self.generations.get(block, 0) + 1

    @rule(tiers=st.sampled_from([("host", "disk"), ("host",), ("disk",)]))
    def clear(self, tiers: tuple[str, ...]) -> None:
        blocks = list(self.stored)
        in_host = {it for it in blocks if self.sim.lookup([it]) == [1]}
        keeps = self._survivors_of_clear(tiers, in_host)
        cleared = self.sim.store.clear(tiers)
        assert set(cleared) == set(tiers)
        if "host" in tiers:
            assert cleared["host"]["blocks"] == len(in_host)
        for lease, _ in self.leases:
            assert lease.release() is False
        self.leases.clear()
        for block in blocks:
            is_there = self.sim.lookup([block]) != [0]
            assert is_there or block not in keeps, f"{block} is gone"
            if not is_there:
                self._forget(block)
                continue
            self.stored[block].set_pins(0)
            if "disk" in tiers:
                self.stored[block].is_offered = self.stored[block].is_durable = False
        if len(tiers) == 2:
            assert not self.stored

    @rule()
    def flush(self) -> None:
        flushed = self.sim.store.flush()
        num_offered = sum(it.is_offered for it in self.stored.values())
        assert flushed.durable_blocks + flushed.not_kept_blocks == len(self.stored)
        assert flushed.durable_blocks >= num_offered
        for stored in self.stored.values():
            stored.is_durable |= stored.is_offered
            if stored.is_durable:
                stored.crash_pins = {stored.num_pins}

    @rule(is_power_lost=st.booleans(), disk_bytes=st.sampled_from(DISK_BYTES))
    def crash(self, is_power_lost: bool, disk_bytes: int) -> None:
        self.sim.crash(is_power_lost=is_power_lost)
        self._open(disk_bytes)
        self._resync(lambda stored: stored.is_durable)

    @rule(disk_bytes=st.sampled_from(DISK_BYTES))
    def reopen(self, disk_bytes: int) -> None:
        self.sim.close()
        self._open(disk_bytes)
        for stored in self.stored.values():
            stored.crash_pins = {stored.num_pins}
        self._resync(lambda stored: stored.is_offered)
        for stored in self.stored.values():
            stored.is_durable = True

    @invariant()
    def numbers_add_up(self) -> None:
        if not hasattr(self, "sim"):
            return
        self.statistics.check(self.sim.store)
        assert self.sim.world.allocated_bytes() <= self.sim.disk_bytes
        tiers = self.sim.store.stats()["tiers"]
        assert isinstance(tiers, dict)
        pinned = [it for it, stored in self.stored.items() if stored.num_pins > 0]
        assert sum(tier["pinned_bytes"] for tier in tiers.values()) == sum(
            SLOT_BYTES[it.space] for it in pinned
        )
        for counter in ("host.evicted", "disk.evicted", "disk.corrupt", "disk.load_failures"):
            assert self.statistics.last[counter] == 0, counter

    def _pick(self, pick: int, first: int, num_blocks: int) -> list[BlockId]:
        is_known = bool(self.puts) and pick < 11
        space, chain = self.puts[-1 - pick % len(self.puts)] if is_known else (pick % 5, 2)
        return run_of_blocks(space, chain, first, num_blocks)

    def _open(self, disk_bytes: int) -> None:
        self.sim.disk_bytes = disk_bytes
        self.sim.open()
        self.statistics.forget()
        self.leases.clear()

    def _resync(self, must_be_there: Callable[[Stored], bool]) -> None:
        """After a start: what had to survive is there, what came back is whole and closed under
        parents, and has its right bytes."""
        for block, stored in list(self.stored.items()):
            is_there = self.sim.lookup([block]) != [0]
            assert is_there or not must_be_there(stored), f"{block} is lost"
            if not is_there:
                # Undeleted, so this generation may come back at a later start.
                del self.stored[block]
            else:
                stored.is_offered = True
        for block, stored in self.stored.items():
            assert stored.parent is None or stored.parent in self.stored, f"{block} is an orphan"
        for block in self.stored:
            self._check_get([block], is_prefix=True)
        for block, stored in self.stored.items():
            self._recount_pins(block, stored)

    def _recount_pins(self, block: BlockId, stored: Stored) -> None:
        num_pins = 0
        while self.sim.unpin([block]):
            num_pins += 1
        assert num_pins in stored.crash_pins, f"{block} has {num_pins} pins"
        for _ in range(num_pins):
            assert self.sim.pin([block]) == 1
        stored.num_pins = num_pins
        # Any number on the way there may have been written meanwhile.
        stored.crash_pins = set(range(num_pins + 1))

    def _check_get(self, blocks: list[BlockId], is_prefix: bool) -> None:
        result, out = self.sim.get(blocks, is_prefix=is_prefix)
        assert result.mask.tolist() == self._expected_mask(blocks, is_prefix)
        delivered = [it for it, is_done in zip(blocks, result.mask, strict=True) if is_done]
        for block, is_done, got in zip(blocks, result.mask, out, strict=True):
            if is_done:
                wanted = block.payload(self.stored[block].generation)
                assert np.array_equal(got, wanted), f"{block} has wrong bytes"
        self._note_offered(delivered)

    def _expected_mask(self, blocks: list[BlockId], is_prefix: bool) -> list[bool]:
        mask = [block in self.stored for block in blocks]
        if is_prefix and False in mask:
            first_miss = mask.index(False)
            mask[first_miss:] = [False] * (len(mask) - first_miss)
        return mask

    def _note_offered(self, blocks: list[BlockId]) -> None:
        """A use offers a block to disk, after the ancestors that are not there yet."""
        for block in blocks:
            above: BlockId | None = block
            while above is not None and not self.stored[above].is_offered:
                self.stored[above].is_offered = True
                above = self.stored[above].parent

    def _leased_blocks(self) -> set[BlockId]:
        return {it for lease, leased in self.leases if lease.expires_in_s > 0 for it in leased}

    def _descendants(self, root: BlockId) -> set[BlockId]:
        """Those of `root`, itself included."""
        found = {root} & self.stored.keys()
        while True:
            more = {it for it, stored in self.stored.items() if stored.parent in found} - found
            if not more:
                return found
            found |= more

    def _removable(self, root: BlockId, leased: set[BlockId]) -> set[BlockId]:
        """What a delete takes: no leased block and no ancestor of one."""
        return {it for it in self._descendants(root) if not self._descendants(it) & leased}

    def _survivors_of_clear(self, tiers: tuple[str, ...], in_host: set[BlockId]) -> set[BlockId]:
        """Blocks with a sure copy in the tier that stays, ancestors included."""
        if len(tiers) == 2:
            return set()
        if tiers == ("host",):
            return {it for it, stored in self.stored.items() if stored.is_durable}
        keeps: set[BlockId] = set()
        for block in self.stored:
            chain = [block]
            while (above := self.stored[chain[-1]].parent) is not None:
                chain.append(above)
            # What is still being written to disk is given up in host, too.
            is_written = all(self.stored[it].is_durable for it in chain)
            if is_written and in_host.issuperset(chain):
                keeps.add(block)
        return keeps

    def _forget(self, block: BlockId) -> None:
        del self.stored[block]
        self.generations[block] += 1
