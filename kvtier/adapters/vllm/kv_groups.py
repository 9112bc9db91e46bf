"""What vLLM's groups of KV layers are: which kind, how far back they reach, how bytes lie in them.

Pure functions; thread-safe. vLLM's objects are taken as they come: nothing of vLLM is imported.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

# By name: a class derived from one of these may well keep something else in its blocks.
PREFIX_KINDS: Final = ("FullAttentionSpec", "MLAAttentionSpec")
# Kind -> the field that says how many tokens before its end a hit needs.
_WINDOW_FIELDS: Final = {
    "SlidingWindowSpec": "sliding_window",
    "ChunkedLocalAttentionSpec": "attention_chunk_size",
}
STATE_KIND: Final = "MambaSpec"
# In which a block holds the state at its end; else there is one block a request, ever changing.
STATE_MODES: Final = ("align",)
SERVED_KINDS: Final = (*PREFIX_KINDS, *_WINDOW_FIELDS, STATE_KIND)
# Whatever of a spec's fields says what lies in a block; those that a kind lacks are left out.
_SPEC_FIELDS: Final = (
    "num_kv_heads",
    "head_size",
    "head_size_v",
    "shapes",
    "dtypes",
    "mamba_type",
    "mamba_cache_mode",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGroup:
    """Layers that share one layout and whose blocks are taken and given up together."""

    group_id: int = 0
    """vLLM's number of the group, which its keys carry."""
    kind: str = PREFIX_KINDS[0]
    """The name of vLLM's spec."""
    window_tokens: int | None = None
    """How many tokens before its end a hit needs; None: all from the first one on."""
    layout: str = ""
    """How bytes lie in a block: what of that is the group's own."""
    is_only: bool = True
    """The engine has no other group, not even one whose blocks are not kept."""


def find_groups(vllm_config: Any, kv_cache_config: Any) -> tuple[KvGroup, ...]:
    """Returns the groups whose blocks can be found by a hash, in vLLM's order."""
    listed = kv_cache_config.kv_cache_groups
    group_ids = getattr(kv_cache_config, "prefix_cacheable_group_ids", range(len(listed)))
    return tuple(
        KvGroup(
            group_id=group_id,
            kind=type(list_layer_specs(listed[group_id])[0]).__name__,
            window_tokens=_find_window(list_layer_specs(listed[group_id])),
            layout=_layout_text(vllm_config, listed[group_id]),
            is_only=len(listed) == 1,
        )
        for group_id in group_ids
    )


def list_layer_specs(group: Any) -> list[Any]:
    """Returns the specs of a group's layers: one for all where they do not differ."""
    spec = group.kv_cache_spec
    layer_specs = getattr(spec, "kv_cache_specs", None)
    return [spec] if layer_specs is None else list(layer_specs.values())


def find_backend_names(vllm_config: Any, layer_names: Any) -> list[str]:
    """Returns the attention backends of these layers: each lays out its blocks as it likes."""
    layers = vllm_config.compilation_config.static_forward_context
    found = (getattr(layers.get(name), "get_attn_backend", None) for name in layer_names)
    return sorted({get_backend().get_name() for get_backend in found if get_backend is not None})


def _find_window(specs: Iterable[Any]) -> int | None:
    windows: list[int] = []
    for spec in specs:
        kind = type(spec).__name__
        if kind == STATE_KIND:
            # The state after the last token is all that the next one needs.
            windows.append(1)
        elif kind in _WINDOW_FIELDS:
            windows.append(int(getattr(spec, _WINDOW_FIELDS[kind])))
        else:
            return None
    return max(windows)


def _layout_text(vllm_config: Any, group: Any) -> str:
    """Returns how bytes lie in a block; what is not said follows from version and device."""
    spec = group.kv_cache_spec
    specs = list_layer_specs(group)
    layers = "\0".join(group.layer_names)
    fields = {
        "backends": find_backend_names(vllm_config, group.layer_names),
        "spec": type(spec).__name__,
        "kinds": sorted({type(it).__name__ for it in specs}),
        "num_layers": len(group.layer_names),
        "layers": hashlib.sha256(layers.encode()).hexdigest()[:16],
        "page_bytes": spec.page_size_bytes,
        "window": _find_window(specs),
        **{name: str(getattr(spec, name)) for name in _SPEC_FIELDS if hasattr(spec, name)},
    }
    return json.dumps(fields, sort_keys=True)
