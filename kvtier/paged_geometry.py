"""PagedGeometry: where an engine keeps the fragments of its blocks. Frozen, so thread-safe."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvtier.errors import ConfigError
from kvtier.paged_tensors import PagedTensor, read_tensors
from kvtier.units import parse_whole_number, show

FRAGMENTS_MAX: Final = 4096
BLOCK_BYTES_MAX: Final = 256 << 20
_OFFSET_MAX: Final = (1 << 63) - 1
_LAYOUT_CHARACTERS_MAX: Final = 400


class FragmentPlace(NamedTuple):
    """One fragment of every block: block i's begins offset_bytes + i * stride_bytes into it."""

    tensor_index: int
    offset_bytes: int
    stride_bytes: int
    """0: the tensor has room for one block only."""
    fragment_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedGeometry:
    """The fragments of a block; their order is the block's host order.

    fragments: of (tensor_index, offset_bytes, stride_bytes, fragment_bytes), bytes from the
               tensor's first item on; at most 4,096, and 256 MiB a block.
    layout:    text that belongs into the identity of the namespace: blocks of equal layout have
               their bytes in the same order. Default: the fragments' sizes. It says nothing of
               addresses and of the number of blocks, so it outlives a restart with more memory.
    Raises ConfigError naming the fragment.
    """

    fragments: tuple[FragmentPlace, ...]
    layout: str = ""

    def __post_init__(self) -> None:
        fragments = _check_fragments(self.fragments)
        if not isinstance(self.layout, str):
            raise ConfigError(f"layout: expected text, got {show(self.layout)}")
        object.__setattr__(self, "fragments", fragments)
        layout = self.layout or _layout_text(
            "fragments", (str(it.fragment_bytes) for it in fragments)
        )
        object.__setattr__(self, "layout", layout)
        if self.block_bytes > BLOCK_BYTES_MAX:
            raise ConfigError(
                f"fragments: they add up to {self.block_bytes} bytes a block, at most "
                f"{BLOCK_BYTES_MAX} are possible; use fewer tokens a block, or fewer layers a group"
            )

    @classmethod
    def from_tensors(cls, tensors: object, block_dim: int = 0) -> "PagedGeometry":
        """Returns the geometry of tensors whose dimension `block_dim` counts blocks.

        tensors:   one a layer, or one across layers; as for attach(), raw memory excepted.
        block_dim: 0 for [num_blocks, ...], 1 for [2, num_blocks, ...]; negative ones count from
                   the end.
        Fragments are the longest stretches of a block without a gap, tensor by tensor and by rising
        address, so any order of heads and tokens in memory gives as few as there can be; it stands
        in `layout`.
        Raises ConfigError (no such dimension, unequal numbers of blocks, too many fragments, items
        that share memory), UsageError (what is no tensor).
        """
        whole = parse_whole_number(block_dim, "block_dim")
        fragments: list[FragmentPlace] = []
        texts: list[str] = []
        num_blocks: int | None = None
        for tensor_index, tensor in enumerate(read_tensors(tensors).tensors):
            view = _BlockView.of(tensor, whole, f"tensors[{tensor_index}]")
            if num_blocks is not None and view.num_blocks != num_blocks:
                raise ConfigError(
                    f"tensors[{tensor_index}]: has {view.num_blocks} blocks in dimension {whole}, "
                    f"tensors[0] has {num_blocks}; set block_dim to the dimension that counts "
                    "blocks, and keep tensors of other numbers of blocks in a group of their own"
                )
            num_blocks = view.num_blocks
            view.check_num_runs(FRAGMENTS_MAX - len(fragments))
            fragments += view.fragments(tensor_index)
            texts.append(view.text)
        return cls(fragments=tuple(fragments), layout=_layout_text("tensors", texts))

    @property
    def block_bytes(self) -> int:
        return sum(fragment.fragment_bytes for fragment in self.fragments)

    @property
    def num_fragments(self) -> int:
        return len(self.fragments)

    @property
    def num_tensors(self) -> int:
        """How many tensors there must be at least."""
        return 1 + max(fragment.tensor_index for fragment in self.fragments)


def _check_fragments(fragments: object) -> tuple[FragmentPlace, ...]:
    listed = list(fragments) if isinstance(fragments, Iterable) else []
    if not listed or isinstance(fragments, (str, bytes)):
        raise ConfigError(
            "fragments: expected at least one (tensor_index, offset_bytes, stride_bytes, "
            f"fragment_bytes), got {show(fragments)}"
        )
    if len(listed) > FRAGMENTS_MAX:
        raise ConfigError(
            f"fragments: {len(listed)} in a block, at most {FRAGMENTS_MAX} are possible; merge "
            "those that lie side by side, or keep fewer layers in a group"
        )
    return tuple(_check_fragment(it, f"fragments[{index}]") for index, it in enumerate(listed))


def _check_fragment(fragment: object, name: str) -> FragmentPlace:
    fields = tuple(fragment) if isinstance(fragment, Iterable) else ()
    if len(fields) != 4 or isinstance(fragment, (str, bytes)):
        raise ConfigError(
            f"{name}: expected (tensor_index, offset_bytes, stride_bytes, fragment_bytes), "
            f"got {show(fragment)}"
        )
    whole = [
        parse_whole_number(value, f"{name}: {what}")
        for what, value in zip(FragmentPlace._fields, fields, strict=True)
    ]
    place = FragmentPlace(*whole)
    for what, number in zip(FragmentPlace._fields, place, strict=True):
        if not 0 <= number <= _OFFSET_MAX:
            raise ConfigError(f"{name}: {what}: {number} is not within 0 to {_OFFSET_MAX}")
    if place.fragment_bytes == 0:
        raise ConfigError(f"{name}: fragment_bytes: 0 bytes; leave the fragment out")
    if 0 < place.stride_bytes < place.fragment_bytes:
        raise ConfigError(
            f"{name}: stride_bytes {place.stride_bytes} is less than fragment_bytes "
            f"{place.fragment_bytes}, so blocks would overlap; it is the distance from one block "
            "to the next"
        )
    return place


class _Dimension(NamedTuple):
    stride_bytes: int
    length: int
    dim: int
    """Its place in the tensor's shape."""


class _BlockView(NamedTuple):
    """One tensor, seen as the blocks that it holds."""

    name: str
    tensor: PagedTensor
    num_blocks: int
    block_stride_bytes: int
    run_bytes: int
    """Length of the innermost stretch without a gap."""
    outer: tuple[_Dimension, ...]
    """Dimensions of a block that step over gaps, the widest first."""
    text: str

    @classmethod
    def of(cls, tensor: PagedTensor, block_dim: int, name: str) -> "_BlockView":
        shape, strides, item_bytes = tensor.shape, tensor.strides_bytes, tensor.item_bytes
        if shape is None or strides is None or item_bytes is None:
            raise ConfigError(
                f"{name}: raw memory has no shape; say where its fragments lie with "
                "PagedGeometry(fragments=[...])"
            )
        if not -len(shape) <= block_dim < len(shape):
            raise ConfigError(
                f"{name}: there is no dimension {block_dim} in shape {shape}; set block_dim to the "
                "one that counts blocks"
            )
        block_dim %= len(shape)
        stepping = [
            _Dimension(stride_bytes, length, dim)
            for dim, (stride_bytes, length) in enumerate(zip(strides, shape, strict=True))
            if length > 1
        ]
        dimensions = sorted(stepping, key=lambda it: -it.stride_bytes)
        _check_apart(dimensions, tensor, name)
        inside = [it for it in dimensions if it.dim != block_dim]
        run_bytes = item_bytes
        outer = list(inside)
        while outer and outer[-1].stride_bytes == run_bytes:
            run_bytes *= outer.pop().length
        return cls(
            name=name,
            tensor=tensor,
            num_blocks=shape[block_dim],
            block_stride_bytes=strides[block_dim],
            run_bytes=run_bytes,
            outer=tuple(outer),
            text=_order_text(inside, item_bytes),
        )

    def check_num_runs(self, num_runs_max: int) -> None:
        num_runs = 1
        for dimension in self.outer:
            num_runs *= dimension.length
        if num_runs > num_runs_max:
            raise ConfigError(
                f"{self.name}: each block lies in {num_runs} pieces of {self.run_bytes} bytes "
                f"(shape {self.tensor.shape}, strides {self.tensor.strides_bytes} bytes), which "
                f"makes more than {FRAGMENTS_MAX} fragments a block; set block_dim to the "
                "dimension that counts blocks, or keep the bytes of a block together"
            )

    def fragments(self, tensor_index: int) -> Iterator[FragmentPlace]:
        begin_bytes, end_bytes = 0, 0
        for offset_bytes in self._run_offsets():
            if end_bytes and offset_bytes != end_bytes:
                yield self._place(tensor_index, begin_bytes, end_bytes)
                begin_bytes = offset_bytes
            end_bytes = offset_bytes + self.run_bytes
        yield self._place(tensor_index, begin_bytes, end_bytes)

    def _run_offsets(self) -> Iterator[int]:
        steps = [range(0, it.stride_bytes * it.length, it.stride_bytes) for it in self.outer]
        return (sum(offsets) for offsets in itertools.product(*steps))

    def _place(self, tensor_index: int, begin_bytes: int, end_bytes: int) -> FragmentPlace:
        return FragmentPlace(
            tensor_index=tensor_index,
            offset_bytes=begin_bytes,
            stride_bytes=self.block_stride_bytes,
            fragment_bytes=end_bytes - begin_bytes,
        )


def _check_apart(dimensions: list[_Dimension], tensor: PagedTensor, name: str) -> None:
    """Each dimension steps over all that the narrower ones reach, or items could share bytes."""
    reach_bytes = tensor.item_bytes or 0
    for dimension in reversed(dimensions):
        if dimension.stride_bytes < reach_bytes:
            raise ConfigError(
                f"{name}: dimension {dimension.dim} steps {dimension.stride_bytes} bytes into "
                f"{reach_bytes} bytes of other items (shape {tensor.shape}, strides "
                f"{tensor.strides_bytes} bytes); pass the tensor itself, not an expanded or "
                "overlapping view of it"
            )
        reach_bytes += dimension.stride_bytes * (dimension.length - 1)


def _order_text(inside: list[_Dimension], item_bytes: int) -> str:
    """The lengths of a block's dimensions as in the shape and, where it is another, their order in
    memory; what has one item only is left out.
    """
    named = sorted(inside, key=lambda it: it.dim)
    text = f"[{','.join(str(it.length) for it in named)}]x{item_bytes}"
    if named == inside:
        return text
    return text + "@" + ",".join(str(named.index(it)) for it in inside)


def _layout_text(kind: str, texts: Iterable[str]) -> str:
    """Equal neighbours are counted; what remains long is digested."""
    groups = [(text, sum(1 for _ in group)) for text, group in itertools.groupby(texts)]
    text = f"{kind} " + " ".join(f"{count}*{text}" for text, count in groups)
    if len(text) <= _LAYOUT_CHARACTERS_MAX:
        return text
    return f"{kind} sha256:{hashlib.sha256(text.encode('ascii')).hexdigest()}"
