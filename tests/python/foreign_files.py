"""Configuration files of other programs, as their users have them. Constants."""

EDGE_FILE = """\
storage:
  chunk_size: 128
  local_cpu: true
  max_local_cpu_size: auto
  local_disk: {folder}
  max_local_disk_size: 500GB
  prefetch_ratio: 0.3
  per_instance_limit: 2GB
compression:
  algorithm: zstd
  level: 3
  chunk_threshold: 1MB
concurrency:
  max_workers: 4
  context_switch_interval: 0.005
"""
LMCACHE_FILE = """\
chunk_size: 256
local_cpu: true
max_local_cpu_size: 5
local_disk: "file:///mnt/nvme/kv"
max_local_disk_size: 100
remote_url: null
remote_serde: naive
save_decode_cache: false
enable_p2p: false
pre_caching_hash_algorithm: builtin
lookup_timeout_ms: 3000
cache_policy: LRU
numa_mode: auto
blend_special_str: " # # "
extra_config: {use_odirect: true, lookup_backoff_time: 0.001}
"""
