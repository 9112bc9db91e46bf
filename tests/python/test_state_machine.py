"""The whole store over a simulated disk, under random calls, faults and crashes, against a model.

KVTIER_HYPOTHESIS_PROFILE=soak runs many more and longer examples, from the seed that pytest gets as
--hypothesis-seed=N; the normal profile runs the same examples each time.
"""

import os

import pytest
from exact_store_machine import DISK_BYTES, ExactStoreMachine
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from simulated_store import BlockId, StatisticsCheck, key_array, run_of_blocks
from tight_store_machine import TightStoreMachine

import kvtier

IS_SOAK = os.environ.get("KVTIER_HYPOTHESIS_PROFILE") == "soak"
NUM_EXAMPLES = int(os.environ.get("KVTIER_HYPOTHESIS_EXAMPLES", "400" if IS_SOAK else "60"))
PROFILE = settings(
    max_examples=NUM_EXAMPLES,
    stateful_step_count=120 if IS_SOAK else 50,
    derandomize=not IS_SOAK,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.timeout(3600 if IS_SOAK else 120)
@pytest.mark.parametrize("machine", [ExactStoreMachine, TightStoreMachine])
def test_the_store_does_what_its_model_says(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=PROFILE)


def started() -> ExactStoreMachine:
    machine = ExactStoreMachine()
    machine.start(seed=1)
    machine.put(space=0, chain=0, first=0, num_blocks=8, is_chain=True)
    machine.flush()
    return machine


def test_the_model_catches_a_block_that_is_lost() -> None:
    machine = started()
    machine.sim.delete([BlockId(0, 0, 5)])
    with pytest.raises(AssertionError):
        machine.get(pick=0, first=0, num_blocks=8, is_prefix=True)


def test_the_model_catches_a_flushed_block_that_a_crash_takes() -> None:
    machine = started()
    machine.sim.delete([BlockId(0, 0, 7)])
    with pytest.raises(AssertionError, match="lost"):
        machine.crash(is_power_lost=True, disk_bytes=DISK_BYTES[0])


def test_the_model_catches_a_deleted_block_that_comes_back() -> None:
    machine = started()
    block = BlockId(0, 0, 7)
    old = block.payload(0)
    machine.delete(pick=0, depth=7, num_blocks=1)
    machine.sim.put([block], [old])
    with pytest.raises(AssertionError):
        machine.get(pick=0, first=7, num_blocks=1, is_prefix=True)
    tight = TightStoreMachine()
    tight.start(seed=1)
    tight.put(space=0, chain=0, first=0, num_blocks=1)
    tight.delete(pick=0, depth=0)
    tight.sim.put([BlockId(0, 0, 0)], [BlockId(0, 0, 0).payload(0)])
    with pytest.raises(AssertionError, match="wrong bytes"):
        tight.get(pick=0, first=0, num_blocks=1, is_prefix=True)


def test_the_model_catches_bytes_of_another_namespace() -> None:
    machine = started()
    blocks = run_of_blocks(1, 0, 0, 2)
    wrong = [BlockId(0, 0, it.depth).payload(0) for it in blocks]
    machine.sim.spaces[1].put(key_array(blocks), wrong)
    machine.stored.update({it: machine.stored[BlockId(0, 0, it.depth)] for it in blocks})
    with pytest.raises(AssertionError, match="wrong bytes"):
        machine._check_get(blocks, is_prefix=True)


def test_the_check_of_numbers_catches_a_counter_that_goes_back() -> None:
    machine = started()
    check = StatisticsCheck()
    counters = check.check(machine.sim.store)
    check.last = {**counters, "lookups": counters["lookups"] + 1}
    with pytest.raises(AssertionError, match="lookups went back"):
        check.check(machine.sim.store)
    assert isinstance(machine.sim.store, kvtier.BlockStore)
