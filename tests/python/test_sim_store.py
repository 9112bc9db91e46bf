"""The store over a simulated disk that fails, flips, stalls and loses power, from seeds."""

import logging

import numpy as np
import pytest
from payload import canary, payloads
from simulated_store import MIB, SimulatedStore
from store_setup import BLOCK_BYTES, namespace_of

import kvtier
from kvtier import Outcome, _core
from kvtier.core_log import log_core_line

SEEDS = range(8)
SILENT_FAULTS = ["read_flip", "misdirected_read", "write_flip", "misdirected_write"]


def open_simulated(seed: int, host_bytes: int = 4 * MIB) -> SimulatedStore:
    return SimulatedStore(seed, host_bytes=host_bytes, disk_bytes=64 * MIB)


@pytest.mark.parametrize("seed", SEEDS)
def test_flushed_blocks_survive_a_power_loss(seed: int) -> None:
    simulated = open_simulated(seed)
    ns = namespace_of(simulated.store)
    keys = ns.keys(range(4 * 60))
    data = payloads(keys, 1, BLOCK_BYTES)
    assert ns.put(keys[:30], data[:30]).num_accepted == 30
    assert simulated.store.flush().durable_blocks == 30
    ns.put(keys[30:], data[30:], parent=keys[29])
    simulated.crash(is_power_lost=True)
    simulated.open()
    ns = namespace_of(simulated.store)
    out = canary(60, BLOCK_BYTES)
    got = ns.get(keys, out)
    assert got.num_blocks >= 30
    np.testing.assert_array_equal(out[got.mask], data[got.mask])
    np.testing.assert_array_equal(out[~got.mask], canary(60, BLOCK_BYTES)[~got.mask])


@pytest.mark.parametrize(
    "fault", ["read_flip", "misdirected_read", "write_flip", "misdirected_write"]
)
@pytest.mark.parametrize("seed", SEEDS)
def test_silent_faults_are_never_served(seed: int, fault: str) -> None:
    simulated = open_simulated(seed, host_bytes=0)
    simulated.world.set_fault(fault, 0.3)
    ns = namespace_of(simulated.store)
    keys = ns.keys(range(4 * 60))
    for generation in range(3):
        data = payloads(keys, 1, BLOCK_BYTES)
        ns.put(keys, data)
        out = canary(60, BLOCK_BYTES)
        got = ns.get(keys, out, prefix=bool(generation % 2))
        np.testing.assert_array_equal(out[got.mask], data[got.mask])
        np.testing.assert_array_equal(out[~got.mask], canary(60, BLOCK_BYTES)[~got.mask])
        assert set(got.outcomes) <= {Outcome.DONE, Outcome.CORRUPT, Outcome.MISS, Outcome.FAILED}


def test_a_failed_load_counts_no_hit_and_removes_the_entry_c7_g1() -> None:
    simulated = open_simulated(1, host_bytes=0)
    world, store = simulated.world, simulated.store
    ns = namespace_of(store)
    keys = ns.keys(range(16))
    ns.put(keys, payloads(keys, 1, BLOCK_BYTES))
    store.flush()
    world.set_fault("read_error", 1.0)
    out = canary(4, BLOCK_BYTES)
    got = ns.get(keys, out)
    assert got.outcomes == [Outcome.FAILED] + [Outcome.MISS] * 3
    np.testing.assert_array_equal(out, canary(4, BLOCK_BYTES))
    stats = store.stats()
    assert stats["hit_blocks"] == 0
    assert stats["tiers"]["disk"]["load_failures"] >= 1  # type: ignore[index]
    assert ns.lookup(keys, prefix=False).num_blocks == 0


def test_a_thousand_failing_puts_say_few_lines_k5(caplog: pytest.LogCaptureFixture) -> None:
    simulated = open_simulated(1, host_bytes=0)
    ns = namespace_of(simulated.store)
    simulated.world.set_fault("write_error", 1.0)
    for i in range(1000):
        put = ns.put([ns.key(i.to_bytes(4, "little"))], bytes(BLOCK_BYTES))
        assert put.num_accepted == 0
    simulated.store.stats()
    with caplog.at_level(logging.INFO, logger="kvtier"):
        for line in simulated.log:
            log_core_line("warning", line)
    assert 1 <= len(caplog.records) <= 10


def test_a_stalled_disk_is_a_timeout_and_then_a_miss_at_once() -> None:
    simulated = open_simulated(1, host_bytes=0)
    world, store = simulated.world, simulated.store
    ns = namespace_of(store)
    keys = ns.keys(range(16))
    ns.put(keys, payloads(keys, 1, BLOCK_BYTES))
    store.flush()
    world.set_stalled(True)
    out = canary(4, BLOCK_BYTES)
    got = ns.get(keys, out, timeout_s=5.0)
    assert got.num_blocks == 0
    assert got.outcomes[0] in {Outcome.TIMEOUT, Outcome.MISS}
    np.testing.assert_array_equal(out, canary(4, BLOCK_BYTES))
    assert store.stats()["tiers"]["disk"]["health"] == "stalled"  # type: ignore[index]
    assert ns.lookup(keys).num_blocks == 0
    fresh = ns.keys(range(100, 116))
    assert ns.put(fresh, payloads(fresh, 1, BLOCK_BYTES), timeout_s=1.0).num_accepted == 0
    world.set_stalled(False)
    world.advance_s(60)
    assert store.stats() is not None
    store.close()


def test_one_seed_gives_one_history() -> None:
    histories = []
    for _ in range(2):
        simulated = open_simulated(42, host_bytes=MIB)
        simulated.world.set_fault("read_error", 0.2)
        simulated.world.set_fault("write_error", 0.2)
        ns = namespace_of(simulated.store)
        history: list[object] = []
        for round_index in range(30):
            keys = ns.keys(range(round_index, round_index + 80))
            put = ns.put(keys, payloads(keys, 1, BLOCK_BYTES))
            got = ns.get(keys, canary(20, BLOCK_BYTES))
            history.append((put.outcomes, got.outcomes))
        history.append(simulated.store.stats())
        histories.append(history)
    assert histories[0] == histories[1]


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(kvtier.UsageError, match="gamma_ray"):
        _core.SimWorld(1, MIB).set_fault("gamma_ray", 1.0)
