"""The settings of other programs' files that kvtier takes, and what becomes of each: a table.

Two kinds of files: that of edge boxes, with the sections `storage`, `compression` and
`concurrency`, and that of LMCache's in-process mode, which is flat. Constants; thread-safe.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kvtier.foreign_values import parse_disk, parse_gb, parse_gb_or_auto, parse_share
from kvtier.setting_parsers import SettingValue, parse_boolean
from kvtier.units import parse_whole_number

_Check = Callable[[object, str], SettingValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignSetting:
    """What is to be known of one foreign name."""

    check: _Check | None = None
    """Reads the value and refuses what makes no sense; None: any value will do."""
    native: str = ""
    """The setting of kvtier that the value is for; "": none."""
    words: Mapping[object, object] | None = None
    """What the value is turned into for `native`; a value that is not there sets nothing."""
    note: str = ""
    """What else is to be known where it sets `native`."""
    becomes: str = ""
    """What becomes of it where it sets nothing."""
    is_later: bool = False
    """kvtier is to have it one day: its use is warned about."""
    off_values: tuple[object, ...] = ()
    """Values that switch the setting off, and with it those in `governs`."""
    governs: tuple[str, ...] = ()


BLOCK_SIZE: Final = "no setting of the store: blocks are as large as the engine's (block_tokens)"
NO_COMPRESSION: Final = "not there yet: blocks are stored as they are"

_STORAGE: Final[Mapping[str, ForeignSetting]] = {
    "chunk_size": ForeignSetting(check=parse_whole_number, becomes=BLOCK_SIZE),
    "local_cpu": ForeignSetting(
        check=parse_boolean,
        native="host_bytes",
        words={False: 0},
        becomes="there is a host tier; host_bytes is its size",
        off_values=(False,),
        governs=("max_local_cpu_size",),
    ),
    "max_local_cpu_size": ForeignSetting(check=parse_gb_or_auto, native="host_bytes"),
    "local_disk": ForeignSetting(
        check=parse_disk,
        native="path",
        becomes="there is a disk tier; path is its folder",
        off_values=(False,),
        governs=("max_local_disk_size",),
    ),
    "max_local_disk_size": ForeignSetting(
        check=parse_gb_or_auto, native="disk_bytes", off_values=(0,), governs=("local_disk",)
    ),
}

_EDGE_STORAGE: Final[Mapping[str, ForeignSetting]] = {
    "prefetch_ratio": ForeignSetting(
        check=parse_share,
        becomes="not there yet: blocks are read ahead when prefetch() names them",
        is_later=True,
        off_values=(0.0,),
    ),
    "per_instance_limit": ForeignSetting(
        check=parse_gb,
        becomes="not there yet: sessions share the tiers without limits of their own",
        is_later=True,
        off_values=(0,),
    ),
}

_COMPRESSION: Final[Mapping[str, ForeignSetting]] = {
    "algorithm": ForeignSetting(
        check=lambda value, _: "none" if value is False else str(value).lower(),
        becomes=NO_COMPRESSION,
        is_later=True,
        off_values=("none", "off"),
        governs=("level", "chunk_threshold"),
    ),
    "level": ForeignSetting(check=parse_whole_number, becomes=NO_COMPRESSION, is_later=True),
    "chunk_threshold": ForeignSetting(check=parse_gb, becomes=NO_COMPRESSION, is_later=True),
}

_CONCURRENCY: Final[Mapping[str, ForeignSetting]] = {
    "max_workers": ForeignSetting(
        native="num_io_threads", note="used where io_uring is not to be had"
    ),
    "context_switch_interval": ForeignSetting(
        becomes="no meaning here: threads wait for work and do not switch by the clock"
    ),
}

# What LMCache's other settings come to here, and the names that share the answer.
_LMCACHE_WITHOUT_NATIVE: Final[Mapping[str, str]] = {
    "no meaning here: the engine's adapter decides what is saved and what is loaded": (
        "save_decode_cache save_unfull_chunk use_layerwise enable_async_loading store_location "
        "retrieve_locations min_retrieve_tokens hit_miss_ratio priority_limit use_gpu_connector_v3 "
        "pipelined_backend enable_scheduler_bypass_lookup lookup_server_worker_ids"
    ),
    "no meaning here: keys are digests that are equal in every process": (
        "pre_caching_hash_algorithm"
    ),
    "no counterpart: blocks are reused as prefixes only": (
        "enable_blending blend_recompute_ratio blend_recompute_ratios blend_thresholds "
        "blend_check_layers blend_min_tokens blend_special_str"
    ),
    "no counterpart: blocks come from this machine only": (
        "enable_p2p p2p_host p2p_init_ports p2p_lookup_ports lookup_url distributed_url "
        "external_lookup_client transfer_channel enable_pd enable_xpyd pd_role pd_buffer_size "
        "pd_buffer_device pd_peer_host pd_peer_init_port pd_peer_alloc_port pd_peer_query_port "
        "pd_proxy_host pd_proxy_port pd_allocation_timeout_sec pd_shutdown_timeout_sec "
        "pd_condition_poll_interval_sec pd_max_prefill_len pd_backend_mode pd_bidirectional "
        "pd_skip_proxy_notification nixl_role nixl_peer_host nixl_peer_port nixl_receiver_port "
        "nixl_peer_init_port nixl_peer_alloc_port nixl_proxy_host nixl_proxy_port nixl_backends "
        "nixl_buffer_size nixl_buffer_device enable_nixl audit_actual_remote_url remote_serde"
    ),
    "no meaning here: there is no server or controller beside the store": (
        "mp_host mp_port enable_controller lmcache_instance_id controller_url controller_pull_url "
        "controller_reply_url lmcache_worker_port lmcache_worker_ports lmcache_worker_ids "
        "lmcache_worker_heartbeat_delay_time lmcache_worker_heartbeat_time remote_config_url "
        "internal_api_server_enabled internal_api_server_host internal_api_server_port_start "
        "internal_api_server_include_index_list internal_api_server_socket_path_prefix app_id "
        "script_allowed_imports run_script_api_enabled"
    ),
    "no meaning here: the store has no plug-ins": (
        "plugin_locations runtime_plugin_locations external_backends storage_plugins "
        "remote_storage_plugins"
    ),
    "no meaning here: host memory is provided ahead of its use, step by step": (
        "enable_lazy_memory_allocator lazy_memory_initial_ratio lazy_memory_expand_trigger_ratio "
        "lazy_memory_step_ratio lazy_memory_safe_size local_cpu_use_hugepages"
    ),
    "no meaning here: auto leaves four fifths of the memory to others": "reserve_local_cpu_size",
    "no meaning here: a disk tier has one folder for all GPUs": "local_disk_path_sharding",
    "no counterpart: disk and GPU exchange blocks through host memory": (
        "gds_path gds_path_sharding gds_buffer_size use_gds gds_backend cufile_buffer_size "
        "weka_path maru_path maru_pool_size"
    ),
    "no counterpart: hidden states are not stored": (
        "enable_hidden_state_cache max_hidden_state_cpu_size hidden_state_layers "
        "hidden_states_retrieve_mode"
    ),
    "no meaning here: default_timeout_s and each call's timeout_s bound waiting": (
        "blocking_timeout_secs lookup_timeout_ms error_handling"
    ),
    "no meaning here: each lease has its own ttl_s": "pin_timeout_sec pin_check_interval_sec",
    "no meaning here: stats() counts all the time": (
        "enable_chunk_statistics chunk_statistics_auto_start_statistics "
        "chunk_statistics_auto_exit_timeout_hours chunk_statistics_auto_exit_target_unique_chunks "
        "chunk_statistics_strategy"
    ),
    "no setting of the store: the engine's adapter sends events": "enable_kv_events",
    "no meaning here: kvtier leaves the garbage collector alone": "py_enable_gc",
}

_LMCACHE: Final[Mapping[str, ForeignSetting]] = {
    **_STORAGE,
    "remote_url": ForeignSetting(
        becomes="not there yet: there is no remote tier", is_later=True, off_values=("",)
    ),
    "cache_policy": ForeignSetting(
        check=lambda value, _: str(value).lower(),
        native="eviction",
        words={"lru": "lru"},
        becomes="no counterpart: eviction stays as it is",
    ),
    "numa_mode": ForeignSetting(
        check=lambda value, _: str(value).lower(),
        native="numa",
        words={"auto": "auto"},
        becomes="no counterpart: name the nodes in numa",
    ),
    **{
        name: ForeignSetting(becomes=becomes)
        for becomes, names in _LMCACHE_WITHOUT_NATIVE.items()
        for name in names.split()
    },
}

FLAT: Final = ""
"""The section of names that stand at the top of a file."""
FREE_SECTION: Final = "extra_config"
"""LMCache's section whose names are those of its plug-ins: none of them is unknown."""
FREE_BECOMES: Final = "no meaning here: it is for LMCache's own parts and plug-ins"
DIRECT_BECOMES: Final = "no setting needed: direct is on where the file system can (direct = auto)"

FOREIGN_SECTIONS: Final[Mapping[str, Mapping[str, ForeignSetting]]] = {
    "storage": {**_STORAGE, **_EDGE_STORAGE},
    "compression": _COMPRESSION,
    "concurrency": _CONCURRENCY,
    FREE_SECTION: {"use_odirect": ForeignSetting(becomes=DIRECT_BECOMES)},
    FLAT: _LMCACHE,
}
