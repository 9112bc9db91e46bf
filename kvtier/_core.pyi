"""Types of the C++ extension. Thin: checked arguments in, plain values out. Thread-safe.

Calls that may block (put, get, erase, flush, clear, close, open, Job.wait) release the GIL. Arrays
are C-contiguous: keys uint8[n, 16], addresses uint64[n], results uint8[n]. Errors are raised as
the classes of kvtier.errors.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from kvtier._core_fields import (
    DamagedBlock as DamagedBlock,
)
from kvtier._core_fields import (
    DeviceInfo as DeviceInfo,
)
from kvtier._core_fields import (
    DirectoryContents as DirectoryContents,
)
from kvtier._core_fields import (
    DirectoryProbe as DirectoryProbe,
)
from kvtier._core_fields import (
    NamespaceContents as NamespaceContents,
)
from kvtier._core_fields import (
    NumaProbe as NumaProbe,
)
from kvtier._core_fields import (
    PlanFields as PlanFields,
)
from kvtier._core_fields import (
    SegmentContents as SegmentContents,
)
from kvtier._core_fields import (
    SimulatedDisk as SimulatedDisk,
)
from kvtier._core_fields import (
    StoreOptions as StoreOptions,
)
from kvtier._core_fields import (
    TransferOptions as TransferOptions,
)
from kvtier._core_fields import (
    TransferResult as TransferResult,
)
from kvtier._core_fields import (
    VerifyReport as VerifyReport,
)
from kvtier._core_worker import (
    ArenaView as ArenaView,
)
from kvtier._core_worker import (
    PagedWorker as PagedWorker,
)
from kvtier._core_worker import (
    WorkerJob as WorkerJob,
)

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

class Store:
    def __init__(self, options: StoreOptions, log: Callable[[str, str], None]) -> None:
        """Opens. `log(level, text)` is called from the calling thread or later by drain_log()."""
    def add_namespace(
        self, namespace_id: bytes, description: str, block_bytes: int, part_bytes: list[int]
    ) -> int: ...
    def lookup(
        self, namespace_index: int, keys: U8, prefix: bool, max_load_s: float
    ) -> tuple[int, U8]:
        """(num_blocks, tiers)"""
    def lease(
        self, namespace_index: int, keys: U8, prefix: bool, ttl_s: float, owner: str
    ) -> tuple[int, int, U8]:
        """(lease_id, num_blocks, tiers)"""
    def release(self, lease_id: int) -> bool: ...
    def lease_expires_in_s(self, lease_id: int) -> float: ...
    def put(
        self,
        namespace_index: int,
        keys: U8,
        addresses: U64,
        parent: bytes | None,
        chain: bool,
        request_hash: int,
        timeout_s: float,
    ) -> U8:
        """Outcomes."""
    def get(
        self,
        namespace_index: int,
        keys: U8,
        addresses: U64,
        prefix: bool,
        request_hash: int,
        timeout_s: float,
    ) -> U8: ...
    def put_async(
        self,
        job: Job,
        namespace_index: int,
        keys: U8,
        addresses: U64,
        holders: object,
        parent: bytes | None,
        chain: bool,
        request_hash: int,
        timeout_s: float,
    ) -> None:
        """`holders` is let go by a later call of any kind, after the job has ended."""
    def get_async(
        self,
        job: Job,
        namespace_index: int,
        keys: U8,
        addresses: U64,
        holders: object,
        prefix: bool,
        request_hash: int,
        timeout_s: float,
    ) -> None: ...
    def attach(
        self,
        namespace_index: int,
        cuda_ordinal: int,
        tensors: Sequence[tuple[int, int]],
        fragments: Sequence[tuple[int, int, int, int]],
        part_bytes: Sequence[int],
        holders: object,
        options: Mapping[str, object],
    ) -> Attachment:
        """cuda_ordinal -1: the host. `holders` keeps the tensors valid."""
    def plan_save(
        self,
        job: Job,
        namespace_index: int,
        keys: U8,
        ranks: tuple[bytes, tuple[int, ...], int],
        parent: bytes | None,
        chain: bool,
        request_hash: int,
        timeout_s: float,
    ) -> None:
        """ranks: (namespace_id, part_bytes, num_ranks)."""
    def plan_load(
        self,
        job: Job,
        namespace_index: int,
        keys: U8,
        ranks: tuple[bytes, tuple[int, ...], int],
        prefix: bool,
        request_hash: int,
        timeout_s: float,
    ) -> None: ...
    def finish_plan(
        self,
        fields: tuple[int, bytes, int, str, str, int, int],
        checksums: U64,
        undefined_indices: I64,
    ) -> bool:
        """fields: (plan_id, arena_id, rank, status, message, first_part, num_parts)."""
    def abandon_rank(self, rank: int) -> int: ...
    def plan_generation(self) -> int: ...
    def share_arenas(self) -> list[tuple[bytes, int, int, int, bytes]]:
        """(arena_id, num_bytes, process_id, fd, socket_number) of each."""
    def poll_jobs(self) -> list[Job]:
        """Jobs that ended since the last call, each once, as new objects."""
    def job_event_fd(self) -> int: ...
    def prefetch(self, namespace_index: int, keys: U8) -> None: ...
    def erase(self, namespace_index: int, keys: U8) -> int: ...
    def pin(self, namespace_index: int, keys: U8) -> int: ...
    def unpin(self, namespace_index: int, keys: U8) -> int: ...
    def flush(self, timeout_s: float) -> tuple[int, int]: ...
    def clear(self, host: bool, disk: bool) -> dict[str, dict[str, int]]: ...
    def stats(self) -> dict[str, object]:
        """Flat fields of StoreStats; "host" and "disk" are dicts of TierStats fields or None."""
    def erase_where(self, namespace_id: bytes, segment_ids: list[int]) -> int:
        """Of one namespace, or of all (b""); on disk in these segments, or anywhere ([])."""
    def holders(self, num_max: int) -> list[tuple[str, str, int, int, int, float, float]]:
        """(kind, owner, id, num_blocks, num_bytes, since_s, until_s) of the oldest."""
    def close(self, timeout_s: float) -> None: ...
    def is_closed(self) -> bool:
        """Also true in a forked child, after abandon_after_fork()."""
    def abandon_after_fork(self) -> None:
        """In the child of a fork: gives up descriptors without locks; later calls: ClosedError."""
    def drain_log(self) -> list[tuple[str, str]]:
        """Lines from background threads since the last call; the Python layer logs them."""

class Job:
    """Made before Store.put_async and others start it; keeps the store alive."""

    def __init__(self, store: Store) -> None: ...
    def has_begun(self) -> bool: ...
    @property
    def job_id(self) -> int: ...
    @property
    def kind(self) -> str:
        """ "put", "get", "save", "load", "planned_save" or "planned_load"."""
    def is_ended(self) -> bool: ...
    def wait(self, timeout_s: float) -> U8:
        """Outcomes. TimeoutError: the job goes on."""
    def cancel(self) -> None: ...
    def undefined_block_ids(self) -> I64:
        """Of a load that ended; of a planned one the positions in its keys."""
    def take_plans(self, timeout_s: float, taken: list[PlanFields]) -> None:
        """Appends them to `taken`, which is empty; when it raises, nothing was taken."""
    def put_back_plans(self, plan_ids: Sequence[int]) -> None: ...
    def are_plans_exhausted(self) -> bool: ...
    def order_stream_after(self, stream_id: int, timeout_s: float) -> None: ...

class Attachment:
    """Made by Store.attach; keeps the store alive, as do its jobs."""

    def save(
        self,
        job: Job,
        keys: U8,
        block_ids: I64,
        stream_id: int,
        parent: bytes | None,
        chain: bool,
        request_hash: int,
        timeout_s: float,
    ) -> None: ...
    def load(
        self,
        job: Job,
        keys: U8,
        block_ids: I64,
        stream_id: int,
        prefix: bool,
        request_hash: int,
        timeout_s: float,
    ) -> None: ...
    def detach(self) -> None: ...
    def stats(self) -> dict[str, int | str]: ...

class SimWorld:
    """Simulated clock and disk for tests: `open` gives a Store that runs in the calling thread."""

    def __init__(self, seed: int, capacity_bytes: int, bytes_per_s: float = 1e9) -> None: ...
    def open(self, options: StoreOptions, log: Callable[[str, str], None]) -> Store: ...
    def crash(self, keeps_all: bool) -> None: ...
    def set_fault(self, name: str, probability: float) -> None: ...
    def set_stalled(self, stalled: bool) -> None: ...
    def now_s(self) -> float: ...
    def advance_s(self, seconds: float) -> None: ...
    def file_names(self) -> list[str]: ...
    def allocated_bytes(self) -> int: ...
    def read_file(self, name: str) -> bytes: ...
    def flip_bit(self, name: str, offset_bytes: int, bit_index: int) -> None: ...

def checksum_part(data: bytes, key: bytes, namespace_id: bytes, part_index: int) -> int: ...
def is_key_array(keys: object) -> TypeGuard[U8]:
    """Whether it is a C-contiguous array uint8[n, 16]."""

def checksum_path_name() -> str: ...
def choose_num_io_threads() -> int:
    """What num_io_threads="auto" means on the CPUs that this process may use."""

def checksum_and_copy(source: U8, target: U8 | None, block_bytes: int) -> int:
    """Hashes, then copies block by block without the GIL: the least that a verified get costs.

    Without a target: hashes only, which is the least that a promotion costs.
    """

def inspect_directory(path: str, chains: bool = False) -> DirectoryContents:
    """Reads superblock, namespace table and slot tables without opening the store (no lock taken).

    TierIOError with ENOENT: no store there. UnsupportedError: one of another version.
    """

def verify_directory(
    path: str, report: Callable[[int, int], None] | None, bytes_per_s_max: int = 0
) -> VerifyReport:
    """Reads every committed block and checks it. Takes the lock (StoreBusyError).

    `report(num_done, num_blocks)` is called now and then.
    """

def probe_numa() -> NumaProbe:
    """For the doctor: what numa="auto" comes to here, tried with a page of its own."""

def probe_directory(path: str, probe_bytes: int) -> DirectoryProbe:
    """For the doctor: tries direct I/O, preallocation and rates with a temporary file."""

def read_live_file(path: str) -> str | None:
    """Text of the live file in folder `path`; None: there is none. Takes no lock."""

def list_own_files(path: str) -> list[tuple[str, int]]:
    """(name, allocated_bytes) of kvtier's files, those of other format versions included."""

def wipe_directory(path: str) -> list[tuple[str, int]]:
    """Removes the files of list_own_files and returns them. Takes the lock (StoreBusyError)."""

def simulate_policy(
    block_ids: U64, request_ends: U64, policy: str, capacity_blocks: int
) -> tuple[int, int]:
    """(num_hits, num_writes) of "lru" | "s3fifo" | "second_use" | "adaptive" over a trace.

    Request i has the blocks block_ids[request_ends[i - 1] : request_ends[i]].
    """

def count_optimal_hits(block_ids: U64, request_ends: U64, capacity_blocks: int) -> int:
    """Hits of Belady's rule with bypass, which knows the future."""

class TransferDevice:
    """One device, for measurements: memory, events, bare copies, the kernel.

    Addresses are numbers: what they point to has to be there until an event after the work that
    uses it is complete. TierIOError with ENOMEM: memory ran out. Calls that may block release the
    GIL. What was allocated is the caller's until it is given back.
    """

    @staticmethod
    def host() -> TransferDevice: ...
    @staticmethod
    def cuda(ordinal: int) -> TransferDevice:
        """UnsupportedError: no driver, or no such device; the message says which."""
    def info(self) -> DeviceInfo: ...
    def allocate(self, length_bytes: int) -> int: ...
    def deallocate(self, address: int) -> None: ...
    def allocate_page_locked(self, length_bytes: int) -> int: ...
    def deallocate_page_locked(self, address: int) -> None: ...
    def page_lock(self, address: int, length_bytes: int) -> None: ...
    def page_unlock(self, address: int) -> None: ...
    def create_event(self) -> int:
        """One that can be timed."""
    def destroy_event(self, event_id: int) -> None: ...
    def wait_event(self, event_id: int, timeout_s: float) -> None: ...
    def elapsed_s(self, begin_id: int, end_id: int) -> float:
        """By the device's own clock."""
    def create_lane(self, is_load: bool) -> int: ...
    def destroy_lane(self, lane_index: int) -> None: ...
    def record_lane(self, lane_index: int, event_id: int) -> None: ...
    def submit_copies(
        self, lane_index: int, sources: U64, targets: U64, lengths_bytes: U64
    ) -> None: ...
    def create_fragment_table(
        self, fragments: list[tuple[int, int, int]], part_bytes: list[int], num_blocks: int
    ) -> int:
        """fragments: (address, stride_bytes, length_bytes) of block 0's."""
    def destroy_fragment_table(self, table_id: int) -> None: ...
    def submit_gather(
        self,
        lane_index: int,
        table_id: int,
        block_ids: I64,
        targets: U64,
        num_leaves: int,
        num_ctas: int,
    ) -> None:
        """Runs the kernel that copies blocks together, at most 224 a call."""

class TransferEngine:
    """The transfer engine with its thread, for measurements; keeps the device alive.

    Device blocks and slots belong to a job until its end was seen by wait, poll or take.
    """

    def __init__(self, device: TransferDevice, options: TransferOptions) -> None: ...
    def attach(
        self,
        tensors: list[tuple[int, int]],
        fragments: list[tuple[int, int, int, int]],
        part_bytes: list[int],
    ) -> int:
        """tensors: (address, length_bytes); fragments: as PagedGeometry.fragments."""
    def detach(self, attachment_id: int) -> None: ...
    def submit(
        self,
        direction: str,
        attachment_id: int,
        block_ids: I64,
        slots: U64,
        stream_id: int,
        method: str,
        keys: U8 | None,
        checksums: U64,
    ) -> int:
        """keys: seeds of checksums, None: there are none. checksums: of loads with keys."""
    def cancel(self, job_id: int) -> None: ...
    def wait(self, job_id: int, timeout_s: float) -> bool: ...
    def order_stream_after(self, job_id: int, stream_id: int, timeout_s: float) -> None: ...
    def poll(self) -> list[TransferResult]: ...
    def take(self, job_id: int) -> TransferResult: ...
    def close(self, timeout_s: float) -> bool: ...
    def add_host_memory(self, address: int, length_bytes: int) -> None: ...
    def add_page_locked_memory(self, address: int, length_bytes: int) -> None: ...
    def remove_host_memory(self, address: int, length_bytes: int) -> None: ...
    def stats(self) -> dict[str, int]:
        """Fields of TransferStats; jobs and bytes as "save_staged_jobs", "save_staged_bytes"."""
    def note(self) -> str: ...
