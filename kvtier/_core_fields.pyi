"""The dictionaries that the C++ extension takes and gives. Types only: there is no such module."""

from typing import TypedDict

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

class SimulatedDisk(TypedDict):
    """Another disk on paper, for benchmarks and tests; 0 means unlimited."""

    read_bytes_per_s: int
    write_bytes_per_s: int
    latency_s: float
    queue_depth_max: int

class StoreOptions(TypedDict, total=False):
    path: str
    host_bytes: int
    staging_bytes: int
    prefault_bytes: int
    is_arena_shared: bool
    numa: str  # "auto" | "off" | "interleave" | nodes such as "0-1,3"
    disk_bytes: int
    io: str  # "auto" | "uring" | "threads"
    direct: str  # "auto" | "on" | "off"
    eviction: str  # "adaptive" | "lru" | "s3fifo"
    num_io_threads: int
    num_copy_threads: int  # 0: the usable CPUs, less one.
    has_checksum: bool
    is_deleted_on_exit: bool
    blocks_max: int
    lock_wait_s: float
    stall_s: float
    publish_interval_s: float
    default_timeout_s: float
    simulated_disk: SimulatedDisk

class PlanFields(TypedDict):
    """The fields of kvtier.BlockPlan."""

    plan_id: int
    arena_id: bytes
    generation: int
    is_load: bool
    num_ranks: int
    namespace_id: bytes
    part_bytes: tuple[int, ...]
    block_indices: I64
    slot_offsets: U64
    keys: U8
    checksums: U64

class NamespaceContents(TypedDict):
    index: int
    id: str
    description: str
    num_blocks: int
    num_pinned: int
    payload_bytes: int
    num_chains: int
    chain_blocks_max: int
    segments: list[str]

class SegmentContents(TypedDict):
    name: str
    slot_bytes: int
    num_slots: int
    num_used: int
    num_damaged: int
    file_bytes: int
    allocated_bytes: int

class DirectoryContents(TypedDict):
    store_id: str
    is_clean: bool
    namespaces: list[NamespaceContents]
    segments: list[SegmentContents]
    unknown_files: list[str]

class DamagedBlock(TypedDict):
    segment: str
    slot: int
    key: str
    namespace_id: str
    reason: str

class VerifyReport(TypedDict):
    is_clean: bool
    blocks: int
    bytes: int
    num_corrupt: int
    num_torn: int  # In place of corrupt when the store was not closed; never served.
    damaged_entries: int
    unreadable: int
    damaged: list[DamagedBlock]  # The first 10,000.
    unknown_files: list[str]

class DirectoryProbe(TypedDict):
    is_writable: bool
    write_error: str
    file_system: str
    file_system_block_bytes: int
    direct_alignment_memory_bytes: int
    direct_alignment_offset_bytes: int
    is_alignment_reported: bool
    direct_write_error: str  # Empty: it worked.
    fallocate_error: str
    free_bytes: int
    read_gb_per_s: float
    write_gb_per_s: float

class NumaProbe(TypedDict):
    nodes: str  # That this process may use, such as "0-1"; empty: the system does not tell.
    text: str  # What numa="auto" comes to, as in stats().
    refusal: str  # The call that was refused and why; empty: none was.

class DeviceInfo(TypedDict):
    name: str
    kind: str  # "host" | "cuda"
    is_memory_unified: bool
    has_kernels: bool
    can_kernels_reach_host: bool
    identity: str  # Of this device and its driver.
    note: str  # Why something is less than best.

class TransferOptions(TypedDict, total=False):
    max_ctas: int
    are_saves_gentle: bool
    chunk_bytes: int
    calibration_path: str
    is_calibrated: bool
    num_jobs_max: int

class TransferResult(TypedDict):
    job_id: int
    direction: str  # "save" | "load"
    error: str | None
    checksums: U64
    undefined_block_ids: list[int]
    method: str  # As used.
    moved_bytes: int
    device_s: float  # 0: not measured.
