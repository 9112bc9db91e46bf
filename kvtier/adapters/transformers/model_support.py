"""check_model and check_adapter: whether KV follows from the token ids before it, and nothing else.

Other models would keep different KV under the same keys, so what is unknown is refused.
Pure functions; thread-safe.
"""

from collections.abc import Iterator
from typing import Any, Final

from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from kvtier.errors import UnsupportedError, UsageError
from kvtier.units import show

# What they name holds sizes of the text model, not another model.
_PLAIN_SUB_CONFIGS: Final = frozenset({"attn_config", "ffn_config"})
# They are causal, and their configuration says is_decoder=False unless told otherwise.
_CAUSAL_TYPES: Final = frozenset({"gpt_neox", "gpt_neox_japanese"})
# transformers lists them with causal models. CPM-Ant puts tokens of its own before the prompt and
# looks both ways in it; XLM and XLNet look both ways; TrOCR reads an image through its encoder.
_OTHER_TYPES: Final = frozenset({"cpmant", "trocr", "xlm", "xlnet"})
# Their frequencies follow from the configuration. Those of "dynamic" and "longrope" change with
# the length of the forward pass, and K of the same tokens with them.
_ROPE_TYPES: Final = frozenset({"default", "linear", "llama3", "proportional", "yarn"})


def check_model(model_or_config: Any) -> None:
    """Raises UnsupportedError unless this is a causal, text-only model with fixed RoPE."""
    config = getattr(model_or_config, "config", model_or_config)
    reason = _find_other_input(config) or _find_two_way_attention(config)
    # Retrained for embeddings, a model may look both ways under the configuration of the old one.
    if not reason and any(getattr(it, "is_causal", 1) is False for it in _modules(model_or_config)):
        reason = "has a module with is_causal=False"
    if reason:
        raise UnsupportedError(
            f"the model type {show(str(config.model_type))} {reason}: equal token ids do not mean "
            "equal KV; use a causal, text-only model that transformers knows"
        )
    fields = config.to_dict()
    ropes = {name: it for name, it in fields.items() if "rope" in name and isinstance(it, dict)}
    for rope_type in _rope_types(ropes):
        if rope_type not in _ROPE_TYPES:
            raise UnsupportedError(
                f"the model type {show(str(config.model_type))} has RoPE of the type "
                f"{show(rope_type)}, whose K may depend on the length of the forward pass: use a "
                f"model with one of {', '.join(sorted(_ROPE_TYPES))}"
            )


def check_adapter(model: Any, adapter: str | bytes | None) -> None:
    """Raises UsageError where `model` has PEFT adapters and `adapter` names none.

    Raises UnsupportedError for adapters that put tokens of their own before the prompt, or that
    begin to work at a token. A configuration tells nothing of adapters.
    """
    names: set[str] = set()
    for module in _modules(model):
        configs = getattr(module, "peft_config", None) or {}
        for name, it in configs.items():
            if any(
                getattr(it, at, None) for at in ("is_prompt_learning", "alora_invocation_tokens")
            ):
                raise UnsupportedError(
                    f"the adapter {show(str(name))} is of the kind {type(it).__name__}, which adds "
                    "tokens to the prompt or begins at one of them: use one that changes weights"
                )
        active = getattr(module, "active_adapters", None)
        names.update(map(str, configs))
        # A method of this name stands on models without adapters too.
        names.update(map(str, active if isinstance(active, list | tuple) else ()))
    if names and not adapter:
        raise UsageError(
            f"the model has adapters ({show(', '.join(sorted(names)))}) and adapter= is not given: "
            "pass adapter= to namespace_of, a name that stands for the weights of those in use"
        )


def _modules(model_or_config: Any) -> Iterator[Any]:
    return model_or_config.modules() if hasattr(model_or_config, "modules") else iter(())


def _find_other_input(config: Any) -> str:
    """Returns why KV follows from more than tokens, or nothing."""
    if config.is_encoder_decoder or getattr(config, "add_cross_attention", False):
        return "attends to the output of an encoder"
    parts = {name for name, it in vars(config).items() if isinstance(it, PretrainedConfig)}
    parts = (parts | set(getattr(config, "sub_configs", ()))) - _PLAIN_SUB_CONFIGS
    if parts:
        return f"has other models in it ({', '.join(sorted(parts))})"
    if config.get_text_config(decoder=True) is not config:
        return "has a text model in it"
    return ""


def _find_two_way_attention(config: Any) -> str:
    """Returns why KV may follow from later tokens, or nothing."""
    model_type = config.model_type
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or model_type in _OTHER_TYPES:
        return "is not a known causal language model"
    for name in ("use_bidirectional_attention", "prefix_lm"):
        if getattr(config, name, False):
            return f"has {name}"
    for name in ("is_causal", "is_decoder"):
        if getattr(config, name, True) is False and model_type not in _CAUSAL_TYPES:
            return f"has {name}=False"
    return ""


def _rope_types(fields: dict[str, Any]) -> Iterator[str]:
    """Returns the types that RoPE's fields name, of single layers too and by its old name."""
    for name, it in fields.items():
        if isinstance(it, dict):
            yield from _rope_types(it)
        elif name in ("rope_type", "type") and it is not None:
            yield str(it)
