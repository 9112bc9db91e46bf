"""The process that test_crash_kill kills: uses a store without pause, with a journal on stdout.

Usage: crash_child.py PLAN, where PLAN is JSON (see Plan). Each journal line is one event, written
whole before the next call begins; see crash_journal.py for what they mean. One thread.
"""

import json
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).parent)]

import numpy as np
from payload import U8, payload

import kvtier

NUM_CHAINS = 6
CHAIN_BLOCKS = 24
SPACES: tuple[dict[str, object], ...] = (
    {"block_bytes": 4096},
    {"block_bytes": 1000, "salt": "small"},
    {"block_bytes": 50_000, "parts": [20_000, 30_000]},
)
BlockName = tuple[int, int, int]
"""Namespace, chain, depth."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the child does."""

    path: str
    seed: int
    host_bytes: int
    disk_bytes: int
    generation: int
    """Of the first blocks that it writes; each delete and clear begins a higher one."""
    num_calls: int
    """Then it closes the store; -1: never."""

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        return cls(**json.loads(text))


def open_store(path: str, *, host_bytes: int, disk_bytes: int) -> kvtier.BlockStore:
    return kvtier.open(
        path, host_bytes=host_bytes, disk_bytes=disk_bytes, staging_bytes=4 << 20, config={}
    )


def open_spaces(store: kvtier.BlockStore) -> list[kvtier.Namespace]:
    return [
        store.namespace(model="crash", fingerprint="f", block_tokens=1, **changes)  # type: ignore[arg-type]
        for changes in SPACES
    ]


def chain_keys(ns: kvtier.Namespace, chain: int) -> U8:
    return ns.keys(range(chain * 1000, chain * 1000 + CHAIN_BLOCKS))


def block_payload(name: BlockName, generation: int, block_bytes: int) -> U8:
    return payload(name, generation, block_bytes)


class Child:
    """One run from open to the kill or the close."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._generation = plan.generation

    def run(self) -> None:
        self._say("opening")
        plan = self._plan
        store = open_store(plan.path, host_bytes=plan.host_bytes, disk_bytes=plan.disk_bytes)
        spaces = open_spaces(store)
        self._say("opened")
        num_calls = 0
        while num_calls != plan.num_calls:
            self._one_call(store, spaces)
            num_calls += 1
        self._say("closing")
        store.close()
        self._say("closed")

    def _one_call(self, store: kvtier.BlockStore, spaces: list[kvtier.Namespace]) -> None:
        choice = self._random.random()
        space = self._random.randrange(len(spaces))
        chain = self._random.randrange(NUM_CHAINS)
        if choice < 0.45:
            self._put(spaces[space], space, chain)
        elif choice < 0.70:
            self._get(spaces[space], chain)
        elif choice < 0.88:
            self._say("flushing")
            flushed = store.flush()
            self._say("flushed", flushed.durable_blocks, flushed.not_kept_blocks)
        elif choice < 0.98:
            depth = self._random.randrange(CHAIN_BLOCKS)
            self._say("deleting", space, chain, depth)
            spaces[space].delete(chain_keys(spaces[space], chain)[depth : depth + 1])
            self._generation += 1
            self._say("deleted", space, chain, depth)
        else:
            self._say("clearing")
            store.clear()
            self._generation += 1
            self._say("cleared")

    def _put(self, ns: kvtier.Namespace, space: int, chain: int) -> None:
        num_blocks = self._random.randint(1, CHAIN_BLOCKS)
        keys = chain_keys(ns, chain)[:num_blocks]
        data = [
            block_payload((space, chain, depth), self._generation, ns.block_bytes)
            for depth in range(num_blocks)
        ]
        self._say("putting", space, chain, num_blocks, self._generation)
        result = ns.put(keys, data)
        self._say("put", space, chain, result.num_accepted)

    def _get(self, ns: kvtier.Namespace, chain: int) -> None:
        keys = chain_keys(ns, chain)
        ns.get(keys, np.empty((len(keys), ns.block_bytes), dtype=np.uint8))

    def _say(self, event: str, *numbers: int) -> None:
        line = " ".join([event, *map(str, numbers)]) + "\n"
        # Shorter than PIPE_BUF: whole or not at all.
        os.write(1, line.encode())


if __name__ == "__main__":
    Child(Plan.from_json(sys.argv[1])).run()
