"""BlockHashes: the hashes of one group's blocks, where vLLM hashes more finely than that.

Not thread-safe: used by the scheduler's thread only.
"""

from collections.abc import Sequence
from typing import overload


class BlockHashes(Sequence[bytes]):
    """Each `num_hashes`th of vLLM's own list, which grows while the request decodes.

    Hashes are chained: the last one within a block stands for the whole block.
    """

    def __init__(self, hashes: Sequence[bytes], num_hashes: int) -> None:
        self._hashes = hashes
        self._num_hashes = num_hashes

    def __len__(self) -> int:
        return len(self._hashes) // self._num_hashes

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        step = self._num_hashes
        if isinstance(index, slice):
            return [self._hashes[it * step + step - 1] for it in range(*index.indices(len(self)))]
        block_index = range(len(self))[index]
        return self._hashes[block_index * step + step - 1]

    def index(self, value: object, start: int = 0, stop: int | None = None) -> int:
        """Returns the block with this hash; raises ValueError where it ends within a block."""
        step = self._num_hashes
        end = len(self) if stop is None else stop
        # The list's own search is the fast one.
        position = self._hashes.index(value, start * step, end * step)
        if (position + 1) % step:
            raise ValueError("the hash ends within a block")
        return position // step


def view_hashes(hashes: Sequence[bytes], num_hashes: int) -> Sequence[bytes]:
    """Returns one hash a block; the list itself where there are no others."""
    return hashes if num_hashes == 1 else BlockHashes(hashes, num_hashes)
