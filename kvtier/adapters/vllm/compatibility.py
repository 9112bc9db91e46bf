"""Refuses engines that this adapter cannot serve, and says what to change.

Pure functions; thread-safe. vLLM's objects are taken as they come.
"""

from typing import Any, Final

from kvtier.adapters.vllm.kv_groups import (
    PREFIX_KINDS,
    SERVED_KINDS,
    STATE_KIND,
    STATE_MODES,
    list_layer_specs,
)
from kvtier.core_log import warn_once
from kvtier.errors import UnsupportedError
from kvtier.units import show

PROVED_VERSIONS: Final = ("0.26", "0.32")
_PARALLEL_ONE: Final = {
    "pipeline_parallel_size": "--pipeline-parallel-size",
    "prefill_context_parallel_size": "--prefill-context-parallel-size",
    "decode_context_parallel_size": "--decode-context-parallel-size",
    "nnodes": "--nnodes",
}
_BACKENDS: Final = ("uni", "mp", None)
_ROLES: Final = ("kv_both", "kv_producer", "kv_consumer")


def check_engine(vllm_config: Any, kv_cache_config: Any, *, can_fail_requests: bool = True) -> None:
    """Raises UnsupportedError for what is not supported yet.

    can_fail_requests: vLLM computes a whole request again when it is told to; 0.26 does not.
    """
    _check_workers(vllm_config)
    _check_groups(vllm_config, kv_cache_config, can_fail_requests)
    role = str(vllm_config.kv_transfer_config.kv_role)
    if role not in _ROLES:
        raise UnsupportedError(f"kv_role: expected one of {', '.join(_ROLES)}; got {show(role)}")


def has_ranks(vllm_config: Any) -> bool:
    """Returns whether the workers run in processes of their own."""
    parallel = vllm_config.parallel_config
    return parallel.world_size > 1 or parallel.distributed_executor_backend not in {"uni", None}


def has_replicated_kv(vllm_config: Any, kv_cache_config: Any) -> bool:
    """Returns whether all workers have the same KV: then it is kept once."""
    num_ranks = vllm_config.parallel_config.world_size
    # Newer versions of vLLM know it themselves.
    if num_ranks == 1 or getattr(kv_cache_config, "kv_tp_replicas", num_ranks) != num_ranks:
        return False
    return all(
        type(layer_spec).__name__ == "MLAAttentionSpec"
        for group in kv_cache_config.kv_cache_groups
        for layer_spec in list_layer_specs(group)
    )


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


def _check_workers(vllm_config: Any) -> None:
    parallel = vllm_config.parallel_config
    for name, option in _PARALLEL_ONE.items():
        size = getattr(parallel, name, 1)
        if size > 1:
            raise UnsupportedError(
                f"{name} is {size}; kvtier serves tensor parallelism only: use {option} 1, or "
                "leave kvtier out"
            )
    backend = parallel.distributed_executor_backend
    if backend not in _BACKENDS:
        raise UnsupportedError(
            f"distributed_executor_backend is {show(str(backend))}; kvtier's workers share host "
            "memory on one machine: use --distributed-executor-backend mp"
        )
    if has_ranks(vllm_config) and getattr(vllm_config.model_config, "enable_sleep_mode", False):
        raise UnsupportedError(
            "enable_sleep_mode with workers in processes of their own: a save may be under way "
            "when their memory goes; leave sleep mode or kvtier out"
        )


def _check_groups(vllm_config: Any, kv_cache_config: Any, can_fail_requests: bool) -> None:
    groups = kv_cache_config.kv_cache_groups
    kinds: list[str] = []
    for group in groups:
        for spec in list_layer_specs(group):
            _check_spec(spec)
            kinds.append(type(spec).__name__)
    has_windows = any(kind not in PREFIX_KINDS for kind in kinds)
    if (len(groups) > 1 or has_windows) and not can_fail_requests:
        raise UnsupportedError(
            f"the model has {len(groups)} groups of KV layers ({', '.join(dict.fromkeys(kinds))}); "
            "this version of vLLM serves a connector with one of full attention only: use vLLM "
            "0.32 or later, or leave kvtier out"
        )


def _check_spec(spec: Any) -> None:
    kind = type(spec).__name__
    if kind not in SERVED_KINDS:
        raise UnsupportedError(
            f"the model has KV layers of the kind {kind}; kvtier serves "
            f"{', '.join(SERVED_KINDS)}: leave kvtier out"
        )
    mode = getattr(spec, "mamba_cache_mode", None)
    if kind == STATE_KIND and mode not in STATE_MODES:
        raise UnsupportedError(
            f"the model's Mamba state is kept for its last token only (mamba_cache_mode "
            f"{show(mode)}): use --enable-prefix-caching, and --mamba-cache-mode "
            f"{' or '.join(STATE_MODES)}"
        )
