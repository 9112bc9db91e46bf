"""CacheLayout: how the KV of a model's layers lies in a block, and the copies both ways.

Plain values and pure functions over tensors; thread-safe.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers import DynamicCache

from kvtier.errors import UnsupportedError, UsageError
from kvtier.namespace import Namespace
from kvtier.units import show

_TEXT: Final = re.compile(
    r"transformers layers=(?P<layers>\d+) heads=(?P<heads>\d+) head_size=(?P<head>\d+) "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """Shape and dtype of a block: dtype[num_layers, 2 (K, V), num_heads, block_tokens, head_size].

    It stands in the namespace's description, so that a block says itself what it is.
    """

    num_layers: int
    num_heads: int
    head_size: int
    block_tokens: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """Returns the size of a block."""
        values = self.num_layers * 2 * self.num_heads * self.block_tokens * self.head_size
        return values * int(self.dtype.itemsize)

    def text(self, config_digest: str) -> str:
        """Returns what stands as `layout` in the namespace."""
        return (
            f"transformers layers={self.num_layers} heads={self.num_heads} "
            f"head_size={self.head_size} config={config_digest}"
        )

    def empty_blocks(self, num_blocks: int) -> torch.Tensor:
        """Returns room for blocks in host memory, not cleared."""
        heads = (self.num_heads, self.block_tokens, self.head_size)
        return torch.empty((num_blocks, self.num_layers, 2, *heads), dtype=self.dtype)


def layout_of(namespace: Namespace) -> CacheLayout:
    """Returns the layout that namespace_of() gave to `namespace`. Raises UsageError for others."""
    description = namespace.describe()
    match = _TEXT.match(str(description["layout"]))
    dtype = getattr(torch, str(description["dtype"]), None)
    if match is None or not isinstance(dtype, torch.dtype):
        raise UsageError(
            f"the namespace has the layout {show(description['layout'])}, which holds no KV of "
            "transformers: make it with namespace_of(store, model)"
        )
    return CacheLayout(
        num_layers=int(match["layers"]),
        num_heads=int(match["heads"]),
        head_size=int(match["head"]),
        block_tokens=namespace.block_tokens,
        dtype=dtype,
    )


def check_cache(cache: Any, layout: CacheLayout) -> None:
    """Raises UsageError or UnsupportedError unless `cache` holds one sequence of that layout."""
    layers = getattr(cache, "layers", None)
    if layers is None or len(layers) != layout.num_layers:
        held = "no layers" if layers is None else f"{len(layers)} layers"
        raise UsageError(
            f"the cache ({type(cache).__name__}) has {held}, the namespace {layout.num_layers}: "
            "pass the DynamicCache that a forward pass of this model filled"
        )
    for index, layer in enumerate(layers):
        check_layer_kind(layer)
        for name in ("keys", "values"):
            _check_tensor(getattr(layer, name, None), layout, f"layer {index}, {name}")
    lengths = {int(it.shape[2]) for layer in layers for it in (layer.keys, layer.values)}
    if len(lengths) > 1:
        raise UsageError(
            f"the cache's layers hold {sorted(lengths)} tokens: pass it after a forward pass that "
            "came to its end"
        )


def check_layer_kind(layer: Any) -> None:
    """Raises UnsupportedError for layers that do not keep K and V of all tokens."""
    if type(layer).__name__ != "DynamicLayer":
        raise UnsupportedError(
            f"a layer is a {type(layer).__name__}: only full attention in a DynamicCache is "
            "served, which keeps K and V of every token"
        )


def _check_tensor(tensor: Any, layout: CacheLayout, name: str) -> None:
    if tensor is None:
        raise UsageError(
            f"{name}: the cache is empty; pass the one that a forward pass of this model filled"
        )
    shape, wanted = tuple(tensor.shape), (layout.num_heads, layout.head_size)
    if len(shape) != 4 or (shape[1], shape[3]) != wanted:
        raise UsageError(
            f"{name}: shape {shape}; the namespace has [1, {wanted[0]}, tokens, {wanted[1]}]"
        )
    if shape[0] != 1:
        raise UsageError(f"{name}: {shape[0]} sequences; save them one at a time")
    if tensor.dtype != layout.dtype:
        raise UsageError(
            f"{name}: {tensor.dtype}; the namespace has {layout.dtype}: make it of this model, or "
            "with dtype="
        )


def cut_blocks(cache: Any, layout: CacheLayout, first_block: int, end_block: int) -> torch.Tensor:
    """Returns the blocks from `first_block` up to `end_block` of a checked cache, in host memory.

    Waits for the device where the cache lies on one.
    """
    num_blocks, tokens = end_block - first_block, layout.block_tokens
    blocks = layout.empty_blocks(num_blocks)
    for index, layer in enumerate(cache.layers):
        for part, tensor in enumerate((layer.keys, layer.values)):
            cut = tensor[0, :, first_block * tokens : end_block * tokens]
            cut = cut.reshape(layout.num_heads, num_blocks, tokens, layout.head_size)
            blocks[:, index, part].copy_(cut.transpose(0, 1))
    return blocks


def join_blocks(blocks: torch.Tensor, layout: CacheLayout, device: Any) -> Any:
    """Returns a DynamicCache with what `blocks` hold, on `device`."""
    cache = DynamicCache()
    num_tokens = len(blocks) * layout.block_tokens
    shape = (1, layout.num_heads, num_tokens, layout.head_size)
    if num_tokens:
        for index in range(layout.num_layers):
            keys, values = (
                blocks[:, index, part].transpose(0, 1).reshape(shape).to(device) for part in (0, 1)
            )
            cache.update(keys, values, index)
    return cache
