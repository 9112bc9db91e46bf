"""Namespace: the blocks of one model in one layout, and the calls on them. Thread-safe."""

import math
from typing import Final, cast

from kvtier import _core
from kvtier.block_keys import as_key_array, as_key_bytes, chain_keys, fold_raw_key, hash_request
from kvtier.call_arguments import check_flag, check_seconds, check_timeout_s
from kvtier.data_buffers import source_addresses, target_addresses
from kvtier.errors import ConfigError, UsageError
from kvtier.job import Job, get_result, put_result
from kvtier.job_table import JobTable
from kvtier.lease import Lease
from kvtier.namespace_identity import Description, NamespaceIdentity
from kvtier.paged_blocks import PagedBlocks, attach_tensors
from kvtier.paged_geometry import PagedGeometry
from kvtier.paged_tensors import read_tensors
from kvtier.planned_job import PlannedJob
from kvtier.results import U8, GetResult, Lookup, PlannedLoadResult, PutResult
from kvtier.transfer_settings import TransferSettings
from kvtier.units import parse_whole_number, show

_RANKS_MAX: Final = 4096
_OWNER_CHARACTERS_MAX: Final = 64


class Namespace:
    """Made by BlockStore.namespace(). Keys of one namespace mean nothing in another."""

    __slots__ = (
        "_core_store",
        "_default_timeout_s",
        "_identity",
        "_jobs",
        "_namespace_index",
        "_store",
        "_transfer_settings",
    )

    def __init__(
        self,
        *,
        store: object,
        core_store: _core.Store,
        identity: NamespaceIdentity,
        namespace_index: int,
        default_timeout_s: float,
        transfer_settings: TransferSettings,
        jobs: JobTable,
    ) -> None:
        # Held so that the store stays open while a namespace of it is in use.
        self._store = store
        self._core_store = core_store
        self._identity = identity
        self._namespace_index = namespace_index
        self._default_timeout_s = default_timeout_s
        self._transfer_settings = transfer_settings
        self._jobs = jobs

    @property
    def id(self) -> str:
        """Returns 32 hexadecimal digits."""
        return self._identity.id.hex()

    @property
    def block_bytes(self) -> int:
        """Returns the payload of a block."""
        return self._identity.block_bytes

    @property
    def part_bytes(self) -> tuple[int, ...]:
        """Returns the sizes of a block's parts; they add up to block_bytes."""
        return self._identity.part_bytes

    @property
    def block_tokens(self) -> int:
        """Returns the tokens of a block."""
        return self._identity.block_tokens

    def describe(self) -> Description:
        """Returns the canonical fields that the id is made of."""
        return self._identity.describe()

    def keys(self, token_ids: object, *, extra: object = None) -> U8:
        """Returns uint8[num_blocks, 16]: one key per whole block of tokens, chained.

        extra: text or bytes that sets the whole prefix apart, or a sequence with one entry (text,
        bytes or None) per block.
        """
        return chain_keys(
            token_ids,
            namespace_id=self._identity.id,
            block_tokens=self._identity.block_tokens,
            extra=extra,
        )

    def key(self, raw: object) -> U8:
        """Returns uint8[16] for a digest of the caller's own, 1 to 64 bytes."""
        return fold_raw_key(raw, namespace_id=self._identity.id)

    def lookup(
        self, keys: object, *, prefix: bool = True, max_load_s: float | None = None
    ) -> Lookup:
        """Says which blocks can be had now. Reads no payload, moves and touches nothing.

        max_load_s: counts, in order of the keys, no more than what could be loaded in that time by
        the rates measured lately (stats(): read_bytes_per_s) behind the reads that are queued.
        Nothing is cut while a rate is unknown: at first, until about 5 ms of loads were measured.
        """
        num_blocks, tiers = self._core_store.lookup(
            self._namespace_index,
            as_key_array(keys),
            check_flag(prefix, "prefix"),
            math.inf if max_load_s is None else check_seconds(max_load_s, "max_load_s"),
        )
        return Lookup(num_blocks, tiers)

    def lease(
        self,
        keys: object,
        *,
        ttl_s: float = 30.0,
        owner: str | None = None,
        prefix: bool = True,
    ) -> Lease:
        """Looks up and protects what is found for `ttl_s` (at most 3,600 s), in `owner`'s name."""
        if owner is not None and not isinstance(owner, str):
            raise UsageError(f"owner: expected text or None, got {show(owner)}")
        lease_id, num_blocks, tiers = self._core_store.lease(
            self._namespace_index,
            as_key_array(keys),
            check_flag(prefix, "prefix"),
            check_seconds(ttl_s, "ttl_s"),
            (owner or "")[:_OWNER_CHARACTERS_MAX],
        )
        return Lease(num_blocks, tiers, self._core_store, lease_id)

    def put(
        self,
        keys: object,
        data: object,
        *,
        parent: object = None,
        chain: bool = True,
        request: str | bytes | int | None = None,
        timeout_s: float | None = None,
    ) -> PutResult:
        """Stores blocks. Blocks until they are in the host tier, or the deadline.

        data:   num_blocks * block_bytes in one C-contiguous buffer, array or CPU tensor, or a
                sequence of num_blocks of them. Read only during the call, never copied here.
        chain:  each key is the child of the one before it, the first one of `parent`.
        """
        key_array = as_key_array(keys)
        source = source_addresses(data, len(key_array), self._identity.block_bytes)
        outcomes = self._core_store.put(
            self._namespace_index,
            key_array,
            source.addresses,
            None if parent is None else as_key_bytes(parent, "parent"),
            check_flag(chain, "chain"),
            hash_request(request),
            check_timeout_s(timeout_s, self._default_timeout_s),
        )
        return put_result(outcomes)

    def get(
        self,
        keys: object,
        out: object,
        *,
        prefix: bool = True,
        request: str | bytes | int | None = None,
        timeout_s: float | None = None,
    ) -> GetResult:
        """Copies blocks to `out` (as put's data, writable). Blocks until done or the deadline.

        With prefix=True `out[:num_blocks]` is exact and nothing beyond it is touched; with
        prefix=False exactly the blocks of the result's mask are written.
        """
        key_array = as_key_array(keys)
        target = target_addresses(out, len(key_array), self._identity.block_bytes)
        outcomes = self._core_store.get(
            self._namespace_index,
            key_array,
            target.addresses,
            check_flag(prefix, "prefix"),
            hash_request(request),
            check_timeout_s(timeout_s, self._default_timeout_s),
        )
        return get_result(outcomes)

    def put_async(
        self,
        keys: object,
        data: object,
        *,
        parent: object = None,
        chain: bool = True,
        request: str | bytes | int | None = None,
        timeout_s: float | None = None,
    ) -> Job[PutResult]:
        """Like put, in the background. Does not block.

        Slots are taken and parents found at once, so a later call sees this one's keys as being
        filled; only the copying comes later. `data` belongs to the job until its end was observed.
        With 4,096 jobs unfinished a new one ends at once, all DECLINED.
        """
        key_array = as_key_array(keys)
        source = source_addresses(data, len(key_array), self._identity.block_bytes)
        arguments = (
            self._namespace_index,
            key_array,
            source.addresses,
            source.holders,
            None if parent is None else as_key_bytes(parent, "parent"),
            check_flag(chain, "chain"),
            hash_request(request),
            check_timeout_s(timeout_s, self._default_timeout_s),
        )
        started = self._jobs.start(
            self._store, self._core_store, lambda job: self._core_store.put_async(job, *arguments)
        )
        return cast("Job[PutResult]", started)

    def get_async(
        self,
        keys: object,
        out: object,
        *,
        prefix: bool = True,
        request: str | bytes | int | None = None,
        timeout_s: float | None = None,
    ) -> Job[GetResult]:
        """Like get, in the background. Does not block.

        What is there is held, and the first reads are started, at once. `out` belongs to the job
        until its end was observed. With 4,096 jobs unfinished a new one ends at once, all MISS.
        """
        key_array = as_key_array(keys)
        target = target_addresses(out, len(key_array), self._identity.block_bytes)
        arguments = (
            self._namespace_index,
            key_array,
            target.addresses,
            target.holders,
            check_flag(prefix, "prefix"),
            hash_request(request),
            check_timeout_s(timeout_s, self._default_timeout_s),
        )
        started = self._jobs.start(
            self._store, self._core_store, lambda job: self._core_store.get_async(job, *arguments)
        )
        return cast("Job[GetResult]", started)

    def attach(self, tensors: object, geometry: PagedGeometry) -> PagedBlocks:
        """Makes an engine's paged tensors known, to save blocks from and load them into.

        tensors:  one or several, all on one device: torch (CPU or CUDA), numpy, arrays with
                  __cuda_array_interface__ or DLPack, or (pointer, num_bytes, device) whose memory
                  the caller keeps.
        geometry: where the fragments of a block lie; they add up to block_bytes.
        The first tensors on a GPU open it for the store: its transfers are measured (below half a
        second, once for a device and driver), and the host tier is page-locked. Thread-safe;
        blocks for that time.
        Raises UsageError (no tensors, another device than the first, fragments out of range or
        overlapping), ConfigError (sizes that differ), UnsupportedError (no driver, one that is
        too old, or no such device).
        """
        if not isinstance(geometry, PagedGeometry):
            raise UsageError(
                f"geometry: expected a PagedGeometry, got {type(geometry).__name__}; make one with "
                "PagedGeometry.from_tensors(tensors)"
            )
        read = read_tensors(tensors)
        if geometry.block_bytes != self._identity.block_bytes:
            raise ConfigError(
                f"geometry: its fragments add up to {geometry.block_bytes} bytes, the namespace "
                f"has block_bytes={self._identity.block_bytes}"
            )
        part_bytes, settings = self._identity.part_bytes, self._transfer_settings
        attachment = attach_tensors(
            self._core_store, self._namespace_index, read, geometry, part_bytes, settings
        )
        return PagedBlocks(
            store=self._store,
            attachment=attachment,
            tensors=read,
            geometry=geometry,
            default_timeout_s=self._default_timeout_s,
            core_store=self._core_store,
            jobs=self._jobs,
        )

    def plan_save(
        self,
        keys: object,
        *,
        num_ranks: int,
        parent: object = None,
        chain: bool = True,
        request: str | bytes | int | None = None,
        timeout_s: float | None = None,
    ) -> PlannedJob[PutResult]:
        """Like PagedBlocks.save(), for tensors of other processes: makes plans for them.

        num_ranks: ranks 0 to num_ranks - 1 carry the plans out, each the parts that it has; blocks
                   are there when all have answered. Together they have every part. Where several
                   have the same bytes, one rank saves them, and num_ranks is 1.
        Slots are taken at once; the plans are in the job. They are to be sent when the blocks' rows
        are written, or ordered so by the stream of each rank's submit(). Does not block.
        Raises ConfigError (the store was not opened with shared_arena=True).
        """
        arguments = (
            self._namespace_index,
            as_key_array(keys),
            self._ranks(num_ranks),
            None if parent is None else as_key_bytes(parent, "parent"),
            check_flag(chain, "chain"),
            hash_request(request),
            check_timeout_s(timeout_s, self._default_timeout_s),
        )
        started = self._jobs.start(
            self._store,
            self._core_store,
            lambda job: self._core_store.plan_save(job, *arguments),
            is_planned=True,
        )
        return cast("PlannedJob[PutResult]", started)

    def plan_load(
        self,
        keys: object,
        *,
        num_ranks: int,
        prefix: bool = True,
        request: str | bytes | int | None = None,
        timeout_s: float | None = None,
    ) -> PlannedJob[PlannedLoadResult]:
        """Like PagedBlocks.load(), for tensors of other processes: makes plans for them.

        num_ranks: as for plan_save(); ranks that have the same part each load it.
        A plan comes when its blocks are in host memory, so none waits on a rank for the disk.
        Raises as plan_save().
        """
        arguments = (
            self._namespace_index,
            as_key_array(keys),
            self._ranks(num_ranks),
            check_flag(prefix, "prefix"),
            hash_request(request),
            check_timeout_s(timeout_s, self._default_timeout_s),
        )
        started = self._jobs.start(
            self._store,
            self._core_store,
            lambda job: self._core_store.plan_load(job, *arguments),
            is_planned=True,
        )
        return cast("PlannedJob[PlannedLoadResult]", started)

    def _ranks(self, num_ranks: object) -> tuple[bytes, tuple[int, ...], int]:
        whole = parse_whole_number(num_ranks, "num_ranks")
        if not 1 <= whole <= _RANKS_MAX:
            raise UsageError(f"num_ranks: {whole} is not within 1 to {_RANKS_MAX}")
        return self._identity.id, self._identity.part_bytes, whole

    def prefetch(self, keys: object) -> None:
        """Promotes blocks from disk to the host tier before anyone asks. Does not block.

        Goes on in the background, behind reads that somebody waits for. Blocks that get no host
        slot, and what goes beyond a quarter of the host tier (all prefetches under way taken
        together), are skipped; without a host or disk tier there is nothing to do.
        """
        self._core_store.prefetch(self._namespace_index, as_key_array(keys))

    def pin(self, keys: object) -> int:
        """Keeps the unbroken prefix that is there from eviction; returns its length.

        Pins are counted, and end by unpin, delete, clear or a failed load. They survive a restart
        once a later flush() or close() succeeded (usually sooner: within a batch of commits). What
        is pinned gets to disk, and there its copy stays; until then, or without a disk tier, its
        copy in host memory does. At most a quarter of a tier: the prefix ends before the first
        block beyond.
        """
        return self._core_store.pin(self._namespace_index, as_key_array(keys))

    def unpin(self, keys: object) -> int:
        """Takes one pin from each of these blocks that has one; returns from how many."""
        return self._core_store.unpin(self._namespace_index, as_key_array(keys))

    def delete(self, keys: object) -> int:
        """Removes blocks and their descendants, durably; returns how many.

        Leased blocks and their ancestors stay and are not counted.
        """
        return self._core_store.erase(self._namespace_index, as_key_array(keys))

    def __repr__(self) -> str:
        return f"Namespace(id={self.id}, {self._identity.text[:160]})"
