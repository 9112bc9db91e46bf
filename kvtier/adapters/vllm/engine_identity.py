"""Says under which identity an engine's blocks are kept: whatever changes their meaning is in it.

Reads the headers of the model's folder; pure otherwise, thread-safe. vLLM's objects are taken as
they come: nothing of vLLM is imported.
"""

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from kvtier.core_log import warn_once
from kvtier.units import show

_WEIGHT_SUFFIXES: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json")
_NAME_CHARACTERS: Final = 32
_SAMPLE_BYTES: Final = 64 << 10
# Of vLLM's, those that read the weights from files of the model's folder.
_FILE_FORMATS: Final = (
    "auto",
    "hf",
    "safetensors",
    "fastsafetensors",
    "pt",
    "npcache",
    "mistral",
    "bitsandbytes",
)


def describe_engine(
    vllm_config: Any,
    *,
    version: str,
    device_name: str,
    fingerprint: str | None,
) -> dict[str, object]:
    """Returns the arguments of BlockStore.namespace() that hold for all groups of KV layers."""
    cache_config, model_config = vllm_config.cache_config, vllm_config.model_config
    cache_dtype = str(cache_config.cache_dtype)
    return {
        "model": str(model_config.model),
        "fingerprint": find_fingerprint(vllm_config, fingerprint),
        "dtype": str(model_config.dtype) if cache_dtype == "auto" else cache_dtype,
        "layout": _layout_text(cache_config, {"vllm": version, "device": device_name}),
    }


def find_fingerprint(vllm_config: Any, said: str | None) -> str:
    """Returns what tells these weights, computed with in this way, from all others.

    Where the weights cannot be told apart it is a new one for each process, so that blocks are
    not found again after a restart.
    """
    model_config = vllm_config.model_config
    parts = [said or _weights_text(model_config, vllm_config.load_config)]
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        # The scales come from the first requests of a run and are not the same in the next.
        parts.append(_new_epoch("calculate_kv_scales is on: KV is scaled anew in each run"))
    parts.append(digest_texts(_model_texts(vllm_config)))
    return " ".join(parts)


def _weights_text(model_config: Any, load_config: Any) -> str:
    load_format = str(getattr(load_config, "load_format", "auto"))
    if load_format.endswith("dummy"):
        return f"dummy seed {model_config.seed}"
    is_elsewhere = getattr(model_config, "model_weights", None) or getattr(
        load_config, "model_loader_extra_config", None
    )
    if load_format.rpartition(".")[2].lower() not in _FILE_FORMATS or is_elsewhere:
        return _new_epoch(
            f"the weights are not read from the model's own folder (load_format {load_format})"
        )
    folder = _find_folder(str(model_config.model), getattr(model_config, "revision", None))
    if folder is None:
        return _new_epoch(f"the files of model {show(str(model_config.model))} were not found")
    return digest_texts(describe_files(folder))


def _find_folder(model: str, revision: str | None) -> Path | None:
    if os.path.isdir(model):
        return Path(model)
    with contextlib.suppress(Exception):
        # A hub's cache: whatever goes wrong in there means that the folder is not known.
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model, "config.json", revision=revision)
        if isinstance(found, str):
            return Path(found).parent
    return None


def describe_files(folder: Path) -> Iterator[str]:
    """Yields name, size, time of last change and a sample of each file with weights, or about them.

    Reading all weights would take minutes. Whoever writes a file changes its time, but images and
    archives may set all times alike: then the sample tells two trainings apart.
    """
    for path in sorted(folder.iterdir()):
        if path.suffix in _WEIGHT_SUFFIXES and path.is_file():
            status = path.stat()
            sample = _sample_digest(path, status.st_size)
            yield f"{path.name} {status.st_size} {status.st_mtime_ns} {sample}"


def _sample_digest(path: Path, num_bytes: int) -> str:
    """Returns a digest of the file's beginning, middle and end."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        for offset_bytes in (0, num_bytes // 2, max(0, num_bytes - _SAMPLE_BYTES)):
            file.seek(offset_bytes)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _model_texts(vllm_config: Any) -> Iterator[str]:
    """Yields what changes the KV of the same weights: overrides, quantization, a drafter."""
    model_config = vllm_config.model_config
    yield f"{model_config.dtype} {getattr(model_config, 'quantization', None)}"
    hf_config: Any = getattr(model_config, "hf_config", None)
    if hasattr(hf_config, "to_dict"):
        yield json.dumps(hf_config.to_dict(), sort_keys=True, default=str)
    speculative = getattr(vllm_config, "speculative_config", None)
    if speculative is not None:
        yield f"{speculative.method} {speculative.model}"
        folder = _find_folder(str(speculative.model), getattr(speculative, "revision", None))
        yield from () if folder is None else describe_files(folder)


def _layout_text(cache_config: Any, where: dict[str, str]) -> str:
    """Returns how bytes lie in a block: what is not said follows from version and device."""
    fields = {
        **where,
        "layout": str(getattr(cache_config, "kv_cache_layout", None)),
        "layout_wish": os.environ.get("VLLM_KV_CACHE_LAYOUT", ""),
        "hash": str(getattr(cache_config, "prefix_caching_hash_algo", None)),
        "first_hash": _first_hash(),
    }
    return json.dumps(fields, sort_keys=True)


def _first_hash() -> str:
    # vLLM's non-cryptographic hashes start from a number that PYTHONHASHSEED fixes.
    return os.environ.get("PYTHONHASHSEED", "")


def _new_epoch(reason: str) -> str:
    warn_once(
        ("epoch", reason),
        f"{reason}: blocks on disk will not be found after a restart; set fingerprint "
        "(a revision or digest of the weights) if they should be",
    )
    return f"epoch {uuid.uuid4().hex}"


def digest_texts(texts: Iterator[str]) -> str:
    whole = hashlib.sha256()
    for text in texts:
        whole.update(text.encode("utf-8", "surrogateescape") + b"\0")
    return whole.hexdigest()[:_NAME_CHARACTERS]
