"""The parts of vLLM's configuration that the adapter reads, as plain objects."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

LAYER_NAMES = ("layer.0", "layer.1")


class FullAttentionSpec:
    """Only its name, its sizes and its block matter."""

    block_size = 16
    num_kv_heads = 4
    head_size = 128
    page_size_bytes = 32768


class MLAAttentionSpec(FullAttentionSpec):
    pass


class SlidingWindowSpec(FullAttentionSpec):
    sliding_window = 96


class ChunkedLocalAttentionSpec(FullAttentionSpec):
    attention_chunk_size = 128


class MambaSpec:
    block_size = 16
    page_size_bytes = 32768
    mamba_cache_mode = "align"
    shapes: tuple[tuple[int, ...], ...] = ((3, 64), (4, 16, 32))
    dtypes = ("float32", "float32")


class CrossAttentionSpec(FullAttentionSpec):
    pass


class Backend:
    name = "FLASH_ATTN"

    @classmethod
    def get_name(cls) -> str:
        return cls.name


class OtherBackend(Backend):
    name = "FLASHINFER"


def make_model_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def make_config(model: object, **changes: Any) -> Any:
    """Changes: {"part.field": value}, with a double underscore for the dot."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            model=str(model),
            dtype="torch.bfloat16",
            revision=None,
            seed=0,
            quantization=None,
            hf_config=SimpleNamespace(to_dict=lambda: {"rope_theta": 1e6}),
        ),
        cache_config=SimpleNamespace(
            cache_dtype="auto",
            calculate_kv_scales=False,
            kv_cache_layout="LBHNC",
            prefix_caching_hash_algo="sha256",
        ),
        load_config=SimpleNamespace(load_format="auto"),
        compilation_config=SimpleNamespace(
            static_forward_context={
                name: SimpleNamespace(get_attn_backend=lambda: Backend) for name in LAYER_NAMES
            }
        ),
        speculative_config=None,
        parallel_config=SimpleNamespace(
            world_size=1,
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            distributed_executor_backend="uni",
        ),
        kv_transfer_config=SimpleNamespace(kv_role="kv_both"),
    )
    for name, value in changes.items():
        part, _, field = name.partition("__")
        setattr(getattr(config, part) if field else config, field or part, value)
    return config


def make_kv_config(*specs: object) -> Any:
    groups = [
        SimpleNamespace(kv_cache_spec=spec, layer_names=list(LAYER_NAMES))
        for spec in specs or (FullAttentionSpec(),)
    ]
    return SimpleNamespace(kv_cache_groups=groups)
