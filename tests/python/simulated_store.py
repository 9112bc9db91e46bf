"""A BlockStore on a simulated clock and disk that can be crashed and opened again. One thread.

Also the blocks that the state machines use: the same raw keys in several namespaces, so that a
block of one namespace served in another would show.
"""

import hashlib
from dataclasses import dataclass, field

import numpy as np
from payload import U8, canary, payload

import kvtier
from kvtier import _core

KEY_BYTES = 16
TIMEOUT_S = 2.0
MIB = 1 << 20
# Equal and unequal sizes, some below a sector, some in several parts.
SPACES: tuple[dict[str, object], ...] = (
    {"block_bytes": 4096},
    {"block_bytes": 4096, "salt": "another tenant"},
    {"block_bytes": 1000},
    {"block_bytes": 70_000},
    {"block_bytes": 20_000, "parts": [5_000, 0, 15_000]},
)


# Whole pages of 4 KiB, and whole sectors below that.
SLOT_BYTES = (4096, 4096, 1024, 73_728, 20_480)


@dataclass(frozen=True)
class BlockId:
    """One block of the model: the namespace by its index in SPACES, a chain, a depth in it."""

    space: int
    chain: int
    depth: int

    @property
    def key(self) -> bytes:
        text = f"{self.chain}/{self.depth}".encode()
        return hashlib.blake2b(text, digest_size=KEY_BYTES).digest()

    @property
    def parent(self) -> "BlockId | None":
        """What it hangs below when it is put as part of its chain."""
        return BlockId(self.space, self.chain, self.depth - 1) if self.depth > 0 else None

    def is_at_or_below(self, other: "BlockId") -> bool:
        return (self.space, self.chain) == (other.space, other.chain) and self.depth >= other.depth

    def payload(self, generation: int) -> U8:
        block_bytes = SPACES[self.space]["block_bytes"]
        assert isinstance(block_bytes, int)
        return payload((self.space, self.key), generation, block_bytes)


def run_of_blocks(space: int, chain: int, first: int, num_blocks: int) -> list[BlockId]:
    return [BlockId(space, chain, first + i) for i in range(num_blocks)]


def key_array(blocks: list[BlockId]) -> U8:
    joined = b"".join(block.key for block in blocks)
    return np.frombuffer(joined, dtype=np.uint8).reshape(len(blocks), KEY_BYTES)


@dataclass
class SimulatedStore:
    """The store, its world, and the options that the next opening uses."""

    seed: int
    host_bytes: int
    disk_bytes: int
    staging_bytes: int = 1 * MIB
    capacity_bytes: int = 256 * MIB
    bytes_per_s: float = 1e9
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = _core.SimWorld(self.seed, self.capacity_bytes, self.bytes_per_s)
        self.open()

    def open(self) -> None:
        options: _core.StoreOptions = {
            "path": "simulated",
            "host_bytes": self.host_bytes,
            "staging_bytes": self.staging_bytes,
            "disk_bytes": self.disk_bytes,
            "default_timeout_s": TIMEOUT_S,
        }
        # Not `self`: the core keeps what it gets here, and such a circle would never be collected.
        log = self.log
        core_store = self.world.open(options, lambda level, text: log.append(text))
        self.store = kvtier.BlockStore(
            core_store,
            {
                "default_timeout_s": {"value": TIMEOUT_S},
                "path": {"value": "simulated"},
                "transfer_ctas": {"value": 8},
                "gentle_saves": {"value": False},
            },
        )
        self.spaces = [
            self.store.namespace(model="m", fingerprint="f", **changes)  # type: ignore[arg-type]
            for changes in SPACES
        ]

    def close(self) -> None:
        self.store.close()

    def crash(self, *, is_power_lost: bool) -> None:
        """Ends the store with what a power loss or a kill -9 leaves; `open` starts the next one."""
        self.world.crash(not is_power_lost)
        self.store.close(0.0)

    def put(
        self, blocks: list[BlockId], data: list[U8], *, is_chain: bool = True
    ) -> list[kvtier.Outcome]:
        parent = blocks[0].parent
        result = self.spaces[blocks[0].space].put(
            key_array(blocks),
            data,
            parent=parent.key if parent and is_chain else None,
            chain=is_chain,
        )
        assert len(result.outcomes) == len(blocks)
        done = [outcome is kvtier.Outcome.DONE for outcome in result.outcomes]
        assert result.num_accepted == (done.index(False) if False in done else len(done))
        return result.outcomes

    def get(self, blocks: list[BlockId], *, is_prefix: bool) -> tuple[kvtier.GetResult, list[U8]]:
        """Gets into canaries, and checks the shape of the answer and what was left alone."""
        ns = self.spaces[blocks[0].space]
        out = [canary(1, ns.block_bytes)[0] for _ in blocks]
        result = ns.get(key_array(blocks), out, prefix=is_prefix)
        assert len(result.outcomes) == len(result.mask) == len(blocks)
        done = [outcome is kvtier.Outcome.DONE for outcome in result.outcomes]
        assert done == result.mask.tolist()
        assert result.num_blocks == sum(done)
        if is_prefix:
            assert done == sorted(done, reverse=True)
            rest = result.outcomes[result.num_blocks + 1 :]
            assert all(outcome is kvtier.Outcome.MISS for outcome in rest)
        untouched = canary(1, ns.block_bytes)[0]
        for block, is_done, it in zip(blocks, done, out, strict=True):
            assert is_done or np.array_equal(it, untouched), f"{block} was touched"
        return result, out

    def lookup(self, blocks: list[BlockId], *, is_prefix: bool = False) -> list[int]:
        """Returns the tiers."""
        found = self.spaces[blocks[0].space].lookup(key_array(blocks), prefix=is_prefix)
        assert (found.tiers != 0).tolist() == found.mask.tolist()
        assert found.num_blocks == int(found.mask.sum())
        return found.tiers.tolist()

    def lease(self, blocks: list[BlockId], *, ttl_s: float, is_prefix: bool) -> kvtier.Lease:
        return self.spaces[blocks[0].space].lease(key_array(blocks), ttl_s=ttl_s, prefix=is_prefix)

    def pin(self, blocks: list[BlockId]) -> int:
        return self.spaces[blocks[0].space].pin(key_array(blocks))

    def unpin(self, blocks: list[BlockId]) -> int:
        return self.spaces[blocks[0].space].unpin(key_array(blocks))

    def delete(self, blocks: list[BlockId]) -> int:
        return self.spaces[blocks[0].space].delete(key_array(blocks))


@dataclass
class StatisticsCheck:
    """Holds the numbers of a store against each other and against those it saw before."""

    last: dict[str, float] = field(default_factory=dict)

    GAUGES = frozenset(
        {"bytes_used", "bytes_capacity", "blocks", "pinned_bytes", "leased_bytes", "backlog_bytes"}
        | {"read_bytes_per_s", "expected_read_bytes_per_s", "unserved_bytes"}
    )
    COUNTERS = ("lookups", "lookup_blocks", "get_blocks", "hit_blocks", "miss_blocks")

    def forget(self) -> None:
        """A new store starts at zero."""
        self.last = {}

    def check(self, store: kvtier.BlockStore) -> dict[str, float]:
        """Returns the flat counters, as "tier.name" for those of a tier."""
        stats = store.stats()
        tiers = stats["tiers"]
        assert isinstance(tiers, dict)
        counters = {name: stats[name] for name in self.COUNTERS}
        for tier, numbers in tiers.items():
            for name, value in numbers.items():
                if name in {"mode", "health"}:
                    continue
                assert value >= 0, (tier, name, value)
                if name not in self.GAUGES:
                    counters[f"{tier}.{name}"] = value
            assert numbers["corrupt"] <= numbers["load_failures"]
            assert numbers["torn"] <= numbers["corrupt"]
        assert counters["hit_blocks"] == counters["host.hits"] + counters["disk.hits"]
        assert counters["miss_blocks"] == counters["get_blocks"] - counters["hit_blocks"]
        assert counters["host.misses"] == counters["get_blocks"] - counters["host.hits"]
        for name, value in self.last.items():
            assert counters[name] >= value, f"{name} went back: {value} -> {counters[name]}"
        self.last = counters
        return counters
