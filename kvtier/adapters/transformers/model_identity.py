"""namespace_of: under which identity a model's prefixes are kept. Pure functions; thread-safe.

Models and configurations are taken as they come: versions of transformers name fields differently.
"""

import hashlib
import json
from typing import Any, Final

import torch
from transformers import DynamicCache

from kvtier.adapters.transformers.cache_layout import CacheLayout, check_layer_kind
from kvtier.adapters.transformers.model_support import check_adapter, check_model
from kvtier.block_store import BlockStore
from kvtier.errors import UsageError
from kvtier.namespace import Namespace
from kvtier.units import show

# They change with the version, the folder or the call, and do not change KV; dtype stands apart.
_FREE_FIELDS: Final = frozenset(
    {"transformers_version", "_name_or_path", "use_cache", "dtype", "torch_dtype"}
)


def namespace_of(
    store: BlockStore,
    model_or_config: Any,
    *,
    fingerprint: str | bytes | None = None,
    dtype: torch.dtype | None = None,
    block_tokens: int = 16,
    adapter: str | bytes | None = None,
    salt: str | bytes | None = None,
) -> Namespace:
    """Returns the namespace of a model's KV, from the model or from its configuration.

    fingerprint: names the weights (a revision, or a digest of their files); other weights under the
                 same name would be served these blocks without it.
    dtype:       that of the cache; None: the model's, or what the configuration states.
    adapter:     names the weights of the PEFT adapters in use; a model that has some needs it.
    Raises UnsupportedError (layers other than full attention, KV that follows from more than the
    token ids before it), UsageError (no dtype is stated, adapters without a name), ConfigError
    (a value that does not fit, a block too large for every tier).
    """
    config = getattr(model_or_config, "config", model_or_config)
    check_model(model_or_config)
    check_adapter(model_or_config, adapter)
    for layer in DynamicCache(config=config).layers:
        check_layer_kind(layer)
    num_heads = config.num_attention_heads
    layout = CacheLayout(
        num_layers=config.num_hidden_layers,
        num_heads=getattr(config, "num_key_value_heads", None) or num_heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // num_heads,
        block_tokens=block_tokens,
        dtype=dtype or _find_dtype(model_or_config, config),
    )
    return store.namespace(
        model=getattr(config, "_name_or_path", "") or str(config.model_type),
        block_bytes=layout.block_bytes,
        block_tokens=block_tokens,
        fingerprint=fingerprint,
        dtype=str(layout.dtype).removeprefix("torch."),
        layout=layout.text(digest_config(config)),
        adapter=adapter,
        salt=salt,
    )


def digest_config(config: Any) -> str:
    """Returns 16 hexadecimal digits of what a configuration says of the model."""
    fields = {name: it for name, it in config.to_dict().items() if name not in _FREE_FIELDS}
    text = json.dumps(fields, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _find_dtype(model: Any, config: Any) -> torch.dtype:
    for source, name in ((model, "dtype"), (config, "dtype"), (config, "torch_dtype")):
        found = getattr(source, name, None)
        if isinstance(found, torch.dtype):
            return found
    raise UsageError(
        f"{show(str(config.model_type))}: neither model nor configuration states a dtype; pass "
        "dtype=, that of the KV cache"
    )
