"""Refuses engines that this adapter cannot serve, and says what to change.

Pure functions; thread-safe. vLLM's objects are taken as they come.
"""

from typing import Any, Final

from kvtier.core_log import warn_once
from kvtier.errors import UnsupportedError
from kvtier.units import show

PROVED_VERSIONS: Final = ("0.26", "0.32")
# By name: a class derived from one of these may well keep something else in its blocks.
_SERVED_SPECS: Final = ("FullAttentionSpec", "MLAAttentionSpec")
_ROLES: Final = ("kv_both", "kv_producer", "kv_consumer")


def check_engine(vllm_config: Any, kv_cache_config: Any) -> None:
    """Raises UnsupportedError for what is not supported yet."""
    parallel = vllm_config.parallel_config
    if parallel.world_size > 1:
        raise UnsupportedError(
            f"the engine has {parallel.world_size} workers (tensor parallel "
            f"{parallel.tensor_parallel_size}, pipeline parallel "
            f"{parallel.pipeline_parallel_size}); kvtier serves one: use "
            "--tensor-parallel-size 1 --pipeline-parallel-size 1, or leave kvtier out"
        )
    backend = parallel.distributed_executor_backend
    if backend not in {"uni", None}:
        raise UnsupportedError(
            f"the worker runs in a process of its own (distributed_executor_backend "
            f"{show(backend)}); kvtier needs it in the scheduler's: use "
            "--distributed-executor-backend uni, and on a CPU set VLLM_ENABLE_V1_MULTIPROCESSING=0"
        )
    _check_groups(kv_cache_config)
    role = str(vllm_config.kv_transfer_config.kv_role)
    if role not in _ROLES:
        raise UnsupportedError(f"kv_role: expected one of {', '.join(_ROLES)}; got {show(role)}")


def check_version(version: str) -> None:
    """Warns once when this version of vLLM is not one that the adapter was proved on."""
    if ".".join(version.split(".")[:2]) not in PROVED_VERSIONS:
        warn_once(
            ("vllm version", version),
            f"vLLM {version}: this adapter was proved on {', '.join(PROVED_VERSIONS)} only",
        )


def warn_of_double_offloading(vllm_config: Any) -> None:
    """Warns once when the engine moves KV out of the device by itself as well."""
    cache_config = vllm_config.cache_config
    for name in ("swap_space", "kv_offloading_size"):
        if getattr(cache_config, name, None):
            warn_once(
                ("double", name),
                f"vLLM's own {name} is on beside kvtier: KV is moved twice; leave it out",
            )


def _check_groups(kv_cache_config: Any) -> None:
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise UnsupportedError(
            f"the model has {len(groups)} groups of KV layers (sliding window, Mamba or a mix); "
            "kvtier serves models whose layers are all full attention: leave kvtier out"
        )
    spec = groups[0].kv_cache_spec
    layer_specs = getattr(spec, "kv_cache_specs", None)
    for layer_spec in [spec] if layer_specs is None else layer_specs.values():
        kind = type(layer_spec).__name__
        if kind not in _SERVED_SPECS:
            raise UnsupportedError(
                f"the model's KV layers are {kind}; kvtier serves full attention "
                f"({', '.join(_SERVED_SPECS)}): leave kvtier out"
            )
