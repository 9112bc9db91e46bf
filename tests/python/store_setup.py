"""A small namespace that most tests of a store share."""

from collections.abc import Callable
from typing import TypeAlias

import kvtier

OpenStore: TypeAlias = Callable[..., kvtier.BlockStore]
BLOCK_BYTES = 10_000


def namespace_of(store: kvtier.BlockStore, **changes: object) -> kvtier.Namespace:
    """Returns a namespace of 4-token blocks of BLOCK_BYTES, with `changes`."""
    fields: dict[str, object] = {
        "model": "m",
        "block_bytes": BLOCK_BYTES,
        "block_tokens": 4,
        "fingerprint": "f",
    }
    return store.namespace(**{**fields, **changes})  # type: ignore[arg-type]
