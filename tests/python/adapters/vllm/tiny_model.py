"""Makes a small language model with random weights, so that nothing has to be fetched."""

import sys
from pathlib import Path
from typing import Any

VOCABULARY = 512


WINDOW_TOKENS = 96
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    # Wide enough that the next token hangs on the whole prompt.
    "initializer_range": 0.3,
}


def make_model(folder: Path, kind: str = "full") -> Path:
    """Writes configuration and weights to `folder`; the same on every run.

    kind: "full", or "windows" for two layers in three that see WINDOW_TOKENS only.
    """
    import torch

    torch.manual_seed(5)
    make = {"full": _make_full, "windows": _make_windows}[kind]
    make().save_pretrained(folder)
    return folder


def _make_full() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=3, **SIZES))


def _make_windows() -> Any:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            num_hidden_layers=6,
            sliding_window=WINDOW_TOKENS,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
            query_pre_attn_scalar=32,
            **SIZES,
        )
    )


if __name__ == "__main__":
    make_model(Path(sys.argv[1]), *sys.argv[2:])
