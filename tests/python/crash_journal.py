"""What the journal of crash_child proves about the folder that it left. Pure; one thread.

Events come in pairs, before and after a call: between the two it may have happened or not.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from crash_child import CHAIN_BLOCKS, NUM_CHAINS, SPACES, BlockName

ALL_BLOCKS: tuple[BlockName, ...] = tuple(
    (space, chain, depth)
    for space in range(len(SPACES))
    for chain in range(NUM_CHAINS)
    for depth in range(CHAIN_BLOCKS)
)


@dataclass
class Known:
    """One block."""

    possible: set[int] = field(default_factory=set)
    """Generations that may be found; empty: it must not be found."""
    is_accepted: bool = False
    """A put of it was answered with DONE, and nothing removed it since."""
    is_durable: bool = False
    """A flush that began after that answer ended: it must be found, unless it can be evicted."""


class CrashJournal:
    """Follows the events over any number of runs."""

    def __init__(self) -> None:
        self.blocks = {name: Known() for name in ALL_BLOCKS}
        self.generation = 0
        self.num_flushes = 0
        self.num_removals = 0
        self._flushing: list[BlockName] = []

    def follow(self, lines: Iterable[str]) -> str:
        """Takes the events of one run; returns the last."""
        last = ""
        for line in lines:
            last, *rest = line.split()
            self._take(last, [int(number) for number in rest])
        self.end_run()
        return last

    def end_run(self) -> None:
        """What no flush confirmed may be lost from here on."""
        for known in self.blocks.values():
            known.is_accepted = known.is_durable
        self.generation += 1

    def _take(self, event: str, numbers: list[int]) -> None:
        if event == "putting":
            space, chain, num_blocks, self.generation = numbers
            for depth in range(num_blocks):
                self.blocks[space, chain, depth].possible.add(self.generation)
        elif event == "put":
            space, chain, num_blocks = numbers
            for depth in range(num_blocks):
                self.blocks[space, chain, depth].is_accepted = True
        elif event == "flushing":
            self._flushing = [name for name, it in self.blocks.items() if it.is_accepted]
        elif event == "flushed":
            self.num_flushes += 1
            if numbers[1] == 0:
                for name in self._flushing:
                    self.blocks[name].is_durable = True
        elif event in {"deleting", "clearing"}:
            for name in self._named(numbers):
                self.blocks[name].is_accepted = self.blocks[name].is_durable = False
        elif event in {"deleted", "cleared"}:
            self.num_removals += 1
            self.generation += 1
            for name in self._named(numbers):
                self.blocks[name].possible.clear()

    @staticmethod
    def _named(numbers: list[int]) -> list[BlockName]:
        """A block with its descendants, or all."""
        if not numbers:
            return list(ALL_BLOCKS)
        space, chain, depth = numbers
        return [(space, chain, below) for below in range(depth, CHAIN_BLOCKS)]
