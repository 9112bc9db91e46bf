"""`make soak`: random load on the whole store, against its models, until the time is over.

Usage: soak.py [--seconds N] [--seed N]. Takes turns between the Python state machine and the C++
model test, where that is built. Exit 1: something failed; its seed and a command that repeats it
are shown. One thread; the load runs in processes of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEED_BITS = 32
TURN_S = 20.0
"""How long a turn should take: long against its start-up, short against a soak."""
TURN_S_MAX = 900.0
"""A turn that takes longer hangs."""
OUTPUT_LINES = 60
MODEL_TEST = "--source-file=*store_model_test*"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One process: what it runs, with its seed."""

    seed: int
    amount: int
    command: Sequence[str]
    environment: Mapping[str, str]

    def shown(self) -> str:
        """Returns a command line that repeats it."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        words = [
            os.path.relpath(word, ROOT) if Path(word).is_absolute() else word
            for word in self.command
        ]
        return " ".join([*variables, *(f"'{it}'" if "*" in it else it for it in words)])


class Load:
    """A kind of load, and how much of it fits into a turn."""

    name = ""
    unit = ""

    def __init__(self, amount: int) -> None:
        self._amount = amount
        self.amount_sum = 0
        self.num_turns = 0

    def make_turn(self, seed: int, left_s: float) -> Turn:
        share = min(1.0, left_s / TURN_S)
        return self._make_turn(seed, max(1, int(self._amount * share)))

    def note(self, turn: Turn, seconds: float) -> None:
        """Aims the next turn at TURN_S, in steps that one odd measurement cannot spoil."""
        self.amount_sum += turn.amount
        self.num_turns += 1
        factor = min(4.0, max(0.25, TURN_S / max(seconds, 0.001)))
        self._amount = max(1, int(turn.amount * factor))

    def _make_turn(self, seed: int, amount: int) -> Turn:
        raise NotImplementedError


class StateMachineLoad(Load):
    """tests/python/test_state_machine.py in its longer profile."""

    name = "state machine"
    unit = "examples of each machine"

    def _make_turn(self, seed: int, amount: int) -> Turn:
        return Turn(
            seed=seed,
            amount=amount,
            command=[
                sys.executable,
                *("-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "0"),
                *("-k", "does_what_its_model_says", f"--hypothesis-seed={seed}"),
                str(ROOT / "tests" / "python" / "test_state_machine.py"),
            ],
            environment={
                "KVTIER_HYPOTHESIS_PROFILE": "soak",
                "KVTIER_HYPOTHESIS_EXAMPLES": str(amount),
            },
        )


class ModelTestLoad(Load):
    """The C++ model test, with whatever sanitizers it was built with."""

    unit = "seeds"

    def __init__(self, program: Path, amount: int) -> None:
        super().__init__(amount)
        self._program = program
        self.name = f"C++ model ({program.parent.name})"

    def _make_turn(self, seed: int, amount: int) -> Turn:
        return Turn(
            seed=seed,
            amount=amount,
            command=[str(self._program), MODEL_TEST],
            environment={"KVTIER_MODEL_SEED": str(seed), "KVTIER_MODEL_SEEDS": str(amount)},
        )


def find_loads() -> list[Load]:
    """Returns the kinds of load that this checkout can run."""
    programs = sorted((ROOT / "build").glob("*/kvtier_cpp_tests"))
    models = [ModelTestLoad(program, 5) for program in programs if has_model_test(program)]
    return [StateMachineLoad(100), *models]


def has_model_test(program: Path) -> bool:
    """Says no also of one that does not run: it may be half-built."""
    try:
        listed = subprocess.run(
            [str(program), MODEL_TEST, "--list-test-cases"],
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "never give wrong bytes" in listed.stdout


def run_turn(turn: Turn) -> tuple[bool, str]:
    """Returns whether it ended well, and what it said."""
    try:
        done = subprocess.run(
            turn.command,
            cwd=ROOT,
            env={**os.environ, **turn.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=TURN_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
        text = output.decode(errors="replace") if isinstance(output, bytes) else output
        return False, f"{text}\nstill running after {TURN_S_MAX:.0f} s"
    return done.returncode == 0, done.stdout


def soak(seconds: float, seed: int) -> int:
    """Returns the number of failed turns; stops at the first failure of each kind of load."""
    source = random.Random(seed)
    loads = find_loads()
    failed: list[Load] = []
    print(f"soak: seed={seed} seconds={seconds:g} loads: {', '.join(it.name for it in loads)}")
    if len(loads) == 1:
        print("note: no build/*/kvtier_cpp_tests with the model test, so the C++ model is left out")
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and len(failed) < len(loads):
        for load in loads:
            left_s = end_s - time.monotonic()
            if load in failed or (left_s <= 0 and load.num_turns > 0):
                continue
            turn = load.make_turn(source.getrandbits(SEED_BITS), max(left_s, 0.0))
            start_s = time.monotonic()
            is_good, output = run_turn(turn)
            turn_s = time.monotonic() - start_s
            word = "good" if is_good else "FAILED"
            print(
                f"{load.name}: seed={turn.seed} {turn.amount} {load.unit}, {turn_s:.1f} s, {word}",
                flush=True,
            )
            load.note(turn, turn_s)
            if not is_good:
                failed.append(load)
                print("\n".join(output.splitlines()[-OUTPUT_LINES:]))
                print(f"repeat it with: {turn.shown()}")
    for load in loads:
        verdict = "FAILED" if load in failed else "good"
        print(f"{load.name}: {load.num_turns} turns, {load.amount_sum} {load.unit}: {verdict}")
    return len(failed)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Random load against models of the store.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default 60)")
    parser.add_argument("--seed", type=int, help="of everything; a random one by default")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    return 1 if soak(options.seconds, seed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
