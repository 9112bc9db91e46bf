"""save_prefix and load_prefix: a DynamicCache to blocks and back. Stateless; thread-safe."""

from collections.abc import Iterable
from numbers import Integral
from typing import Any

import torch

from kvtier.adapters.transformers.cache_layout import (
    CacheLayout,
    check_cache,
    cut_blocks,
    join_blocks,
    layout_of,
)
from kvtier.adapters.transformers.model_identity import namespace_of
from kvtier.block_store import BlockStore
from kvtier.errors import UsageError
from kvtier.namespace import Namespace


def save_prefix(
    ns_or_store: Namespace | BlockStore,
    cache: Any,
    token_ids: Any,
    *,
    model: Any = None,
    fingerprint: str | bytes | None = None,
    timeout_s: float | None = None,
) -> int:
    """Stores the whole blocks of one sequence; returns how many of its first blocks are stored.

    cache:     the DynamicCache of a forward pass whose tokens began with token_ids[0].
    token_ids: int[num_tokens], or [1, num_tokens]. What the cache does not reach is left out.
    model:     with a store in place of a namespace: the model, or its configuration.
    What is stored already is not copied. Blocks until host memory has the rest, or the deadline.
    Raises UsageError (a cache that is empty or of another shape or dtype, several sequences, what
    are not token ids), UnsupportedError (a cache that does not keep every token).
    """
    ns = _namespace(ns_or_store, model, fingerprint)
    layout = layout_of(ns)
    tokens = list_tokens(token_ids)
    check_cache(cache, layout)
    num_tokens = min(len(tokens), int(cache.get_seq_length()))
    keys = ns.keys(tokens[:num_tokens])
    num_found = ns.lookup(keys).num_blocks
    if num_found == len(keys):
        return num_found
    blocks = cut_blocks(cache, layout, num_found, len(keys))
    parent = keys[num_found - 1] if num_found else None
    stored = ns.put(keys[num_found:], _as_bytes(blocks, layout), parent=parent, timeout_s=timeout_s)
    return num_found + stored.num_accepted


def load_prefix(
    ns_or_store: Namespace | BlockStore,
    token_ids: Any,
    *,
    model: Any = None,
    fingerprint: str | bytes | None = None,
    device: Any = "cpu",
    timeout_s: float | None = None,
) -> tuple[Any, int]:
    """Returns (DynamicCache, num_tokens) for the longest stored prefix; an empty cache for none.

    At least one token is left to compute: a model needs one to say what comes next. Give the
    model token_ids from num_tokens on. device: where the cache is wanted, such as model.device.
    Blocks until the prefix was read and verified, or the deadline: then it is shorter.
    """
    ns = _namespace(ns_or_store, model, fingerprint)
    layout = layout_of(ns)
    keys = ns.keys(list_tokens(token_ids)[:-1])
    keys = keys[: ns.lookup(keys).num_blocks]
    blocks = layout.empty_blocks(len(keys))
    num_blocks = ns.get(keys, _as_bytes(blocks, layout), timeout_s=timeout_s).num_blocks
    return join_blocks(blocks[:num_blocks], layout, device), num_blocks * layout.block_tokens


def list_tokens(token_ids: Any) -> list[int]:
    """Returns the tokens of one sequence, from a list, an array or a tensor with or without batch.

    Raises UsageError for several sequences, and for what are not integers.
    """
    given = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
    if not isinstance(given, Iterable):
        raise _no_tokens(given)
    tokens = list(given)
    if tokens and isinstance(tokens[0], list | tuple):
        if len(tokens) != 1:
            raise UsageError(f"token_ids: {len(tokens)} sequences; pass them one at a time")
        tokens = list(tokens[0])
    # By the few types there are, not token by token: a prompt may have a million.
    for kind in set(map(type, tokens)):
        if kind is bool or not issubclass(kind, Integral):
            raise _no_tokens(next(it for it in tokens if type(it) is kind))
    return tokens


def _no_tokens(given: object) -> UsageError:
    return UsageError(
        f"token_ids: a {type(given).__name__} is no token id: pass a list of integers, or one "
        "tensor int[num_tokens]"
    )


def _namespace(
    ns_or_store: Namespace | BlockStore, model: Any, fingerprint: str | bytes | None
) -> Namespace:
    if isinstance(ns_or_store, Namespace):
        return ns_or_store
    if model is None:
        raise UsageError("a store alone does not say which model: pass model=, or a namespace")
    return namespace_of(ns_or_store, model, fingerprint=fingerprint)


def _as_bytes(blocks: torch.Tensor, layout: CacheLayout) -> torch.Tensor:
    """Returns the same memory as uint8[num_blocks, block_bytes]."""
    return blocks.view(torch.uint8).reshape(len(blocks), layout.block_bytes)
