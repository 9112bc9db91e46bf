"""Makes a small language model with random weights, so that nothing has to be fetched."""

import sys
from pathlib import Path

VOCABULARY = 512


def make_model(folder: Path) -> Path:
    """Writes configuration and weights to `folder`; the same on every run."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        # Wide enough that the next token hangs on the whole prompt.
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    make_model(Path(sys.argv[1]))
