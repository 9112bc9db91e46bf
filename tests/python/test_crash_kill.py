"""kill -9 at seeded instants on a real folder: what is found again is right, durable, and bounded.

KVTIER_CRASH_ROUNDS and KVTIER_CRASH_SEED choose the length and the replay of the full run.
"""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pytest
from crash_child import (
    CHAIN_BLOCKS,
    NUM_CHAINS,
    Plan,
    block_payload,
    chain_keys,
    open_spaces,
    open_store,
)
from crash_journal import CrashJournal
from disk_usage import CapWatch, scan_bytes
from payload import canary

from kvtier import _core

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("crash_child.py")
MIB = 1 << 20
NORMAL_ROUNDS = 10
FULL_ROUNDS = int(os.environ.get("KVTIER_CRASH_ROUNDS", "100"))
FULL_SEED = int(os.environ.get("KVTIER_CRASH_SEED", "1"))
# All blocks of the child take about 10 MiB in slots: one tier pair holds them all, one does not.
ROOMY = (16 * MIB, 64 * MIB)
TIGHT = (2 * MIB, 6 * MIB)
REOPEN_S_MAX = 10.0
# A child killed after this many seconds, whatever the plan says, is stuck.
CHILD_S_MAX = 60.0


@dataclass
class CrashRun:
    """Rounds of start, work, kill and check on one folder."""

    folder: Path
    seed: int
    host_bytes: int
    disk_bytes: int
    journal: CrashJournal = field(default_factory=CrashJournal)
    num_found: int = 0

    def __post_init__(self) -> None:
        self.is_roomy = self.disk_bytes == ROOMY[1]
        self._random = random.Random(self.seed)
        self._watch = CapWatch(self.folder)

    def round(self, index: int) -> None:
        moment = self._random.choice(("opening", "opened", "opened", "opened", "closing"))
        plan = Plan(
            path=str(self.folder),
            seed=self._random.getrandbits(32),
            host_bytes=self.host_bytes,
            disk_bytes=self.disk_bytes,
            generation=self.journal.generation,
            num_calls=self._random.randint(1, 30) if moment == "closing" else -1,
        )
        delay_s = self._random.uniform(0, 0.3 if moment == "opened" else 0.02)
        print(f"seed={self.seed} round={index} moment={moment} delay_s={delay_s:.4f} {plan}")
        last = self.journal.follow(self._run_child(plan, moment, delay_s))
        print(f"last={last} bytes_max={self._watch.bytes_max}")
        assert self._watch.bytes_max <= self.disk_bytes
        # Without a check in between, the next child finds what this one left.
        if self._random.random() < 0.7:
            self.check()

    def _run_child(self, plan: Plan, moment: str, delay_s: float) -> list[str]:
        """Returns the journal; the child is killed `delay_s` after it said `moment`."""
        command = [sys.executable, str(CHILD), json.dumps(asdict(plan))]
        journal = b""
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            pipe = child.stdout.fileno()
            kill_s = time.monotonic() + CHILD_S_MAX
            is_moment = False
            while (left_s := kill_s - time.monotonic()) > 0:
                if select.select([pipe], [], [], min(left_s, 0.002))[0]:
                    piece = os.read(pipe, 1 << 16)
                    if not piece:
                        break
                    journal += piece
                if not is_moment and f"{moment}\n".encode() in journal:
                    is_moment = True
                    kill_s = time.monotonic() + delay_s
                self._watch.sample()
            child.kill()
            while piece := os.read(pipe, 1 << 16):
                journal += piece
            returncode = child.wait()
        assert is_moment, f"the child did not come to {moment}: {journal!r}"
        has_ended = journal.endswith(b"closed\n") and returncode == 0
        assert has_ended or returncode == -signal.SIGKILL, (returncode, journal[-200:])
        return journal.decode().splitlines()

    def check(self) -> None:
        """Opens what is there and holds every block against the journal."""
        start_s = time.monotonic()
        store = open_store(str(self.folder), host_bytes=self.host_bytes, disk_bytes=self.disk_bytes)
        assert time.monotonic() - start_s < REOPEN_S_MAX
        with store:
            for space, ns in enumerate(open_spaces(store)):
                for chain in range(NUM_CHAINS):
                    keys = chain_keys(ns, chain)
                    out = canary(CHAIN_BLOCKS, ns.block_bytes)
                    result = ns.get(keys, out, prefix=False)
                    for depth in range(CHAIN_BLOCKS):
                        name = (space, chain, depth)
                        self._check_block(name, bool(result.mask[depth]), out[depth])
            self._watch.sample()
        names = {name for name, _ in _core.list_own_files(str(self.folder))}
        assert set(scan_bytes(self.folder)) == names
        assert _core.inspect_directory(str(self.folder))["unknown_files"] == []

    def _check_block(self, name: tuple[int, int, int], is_found: bool, got: np.ndarray) -> None:
        known = self.journal.blocks[name]
        if not is_found:
            assert not (known.is_durable and self.is_roomy), f"{name} was flushed and is lost"
            np.testing.assert_array_equal(got, canary(1, len(got))[0])
            return
        self.num_found += 1
        assert known.possible, f"{name} was deleted and came back"
        is_right = any(
            np.array_equal(got, block_payload(name, generation, len(got)))
            for generation in known.possible
        )
        assert is_right, f"{name} has wrong bytes"

    def verify(self) -> dict[str, object]:
        """Runs the command; returns its report."""
        command = [sys.executable, "-m", "kvtier", "verify", "--json", str(self.folder)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        print(done.stdout, done.stderr)
        assert done.returncode == 0, done.stderr
        report: dict[str, object] = json.loads(done.stdout)
        assert report["num_corrupt"] == report["unreadable"] == report["damaged_entries"] == 0
        assert report["is_good"] is True
        return report


def run_rounds(folder: Path, num_rounds: int, seed: int, sizes: tuple[int, int]) -> None:
    run = CrashRun(folder, seed, *sizes)
    for index in range(num_rounds):
        run.round(index)
    # As the last child left it, then closed.
    run.verify()
    run.check()
    report = run.verify()
    assert report["is_clean"] is True
    assert report["num_torn"] == 0
    # A run in which nothing could have gone wrong proves nothing.
    assert run.num_found > 0
    assert run.journal.num_flushes > 0
    assert run.journal.num_removals > 0


@pytest.mark.parametrize("sizes", [ROOMY, TIGHT], ids=["roomy", "tight"])
def test_what_kill_9_leaves_is_right(disk_folder: Path, sizes: tuple[int, int]) -> None:
    run_rounds(disk_folder / "store", NORMAL_ROUNDS, 1, sizes)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sizes", [ROOMY, TIGHT], ids=["roomy", "tight"])
def test_what_many_kill_9_leave_is_right(disk_folder: Path, sizes: tuple[int, int]) -> None:
    run_rounds(disk_folder / "store", FULL_ROUNDS, FULL_SEED, sizes)


def started(folder: Path) -> CrashRun:
    """A folder with one flushed chain, and the journal that says so."""
    run = CrashRun(folder, 1, *ROOMY)
    with open_store(str(folder), host_bytes=ROOMY[0], disk_bytes=ROOMY[1]) as store:
        ns = open_spaces(store)[0]
        data = [block_payload((0, 0, depth), 0, ns.block_bytes) for depth in range(4)]
        ns.put(chain_keys(ns, 0)[:4], data)
    run.journal.follow(["putting 0 0 4 0", "put 0 0 4", "flushing", "flushed 4 0"])
    run.check()
    return run


def test_the_check_catches_a_flushed_block_that_is_lost(disk_folder: Path) -> None:
    run = started(disk_folder / "store")
    run.journal.follow(["putting 0 0 5 0", "put 0 0 5", "flushing", "flushed 5 0"])
    with pytest.raises(AssertionError, match=r"\(0, 0, 4\) was flushed and is lost"):
        run.check()


def test_the_check_catches_a_deleted_block_that_comes_back(disk_folder: Path) -> None:
    run = started(disk_folder / "store")
    run.journal.follow(["deleting 0 0 2", "deleted 0 0 2"])
    with pytest.raises(AssertionError, match=r"\(0, 0, 2\) was deleted and came back"):
        run.check()


def test_the_check_catches_a_stale_generation(disk_folder: Path) -> None:
    run = started(disk_folder / "store")
    run.journal.follow(["deleting 0 0 0", "deleted 0 0 0", "putting 0 0 4 7"])
    with pytest.raises(AssertionError, match="wrong bytes"):
        run.check()
