"""PagedBlocks: an engine's paged tensors, to save from and load into. Thread-safe."""

import os
from typing import Final, cast

import numpy as np

from kvtier import _core
from kvtier.block_keys import as_key_array, as_key_bytes, hash_request
from kvtier.call_arguments import check_flag, check_timeout_s
from kvtier.engine_streams import stream_id_of
from kvtier.errors import UsageError
from kvtier.job import Job
from kvtier.job_table import JobTable
from kvtier.paged_geometry import PagedGeometry
from kvtier.paged_tensors import CPU, PagedTensors
from kvtier.results import I64, LoadResult, PutResult
from kvtier.statistics import Leaf
from kvtier.transfer_settings import TransferSettings
from kvtier.units import show

_HOST_ORDINAL: Final = -1
_BLOCK_ID_MAX: Final = np.iinfo(np.int64).max


class PagedBlocks:
    """Made by Namespace.attach(). The tensors stay alive while this object or a job of it does."""

    __slots__ = (
        "_attachment",
        "_core_store",
        "_default_timeout_s",
        "_geometry",
        "_jobs",
        "_store",
        "_tensors",
    )

    def __init__(
        self,
        *,
        store: object,
        core_store: _core.Store,
        attachment: _core.Attachment,
        tensors: PagedTensors,
        geometry: PagedGeometry,
        default_timeout_s: float,
        jobs: JobTable,
    ) -> None:
        # Held so that the store stays open while tensors are attached to it.
        self._store = store
        self._core_store = core_store
        self._attachment = attachment
        self._tensors = tensors
        self._geometry = geometry
        self._default_timeout_s = default_timeout_s
        self._jobs = jobs

    @property
    def device(self) -> str:
        """Returns "cpu" or "cuda:N"."""
        return self._tensors.device

    @property
    def geometry(self) -> PagedGeometry:
        """Returns where the fragments of a block lie."""
        return self._geometry

    def save(
        self,
        keys: object,
        block_ids: object,
        *,
        stream: object = None,
        parent: object = None,
        chain: bool = True,
        request: str | bytes | int | None = None,
        timeout_s: float | None = None,
    ) -> Job[PutResult]:
        """Saves blocks into the host tier, as put_async does, and from there to disk.

        Without a host tier the job ends when they are on disk.

        keys:      uint8[n, 16]; parent, chain and request as for put.
        block_ids: int[n], the row of each key.
        stream:    what is on it by now comes first; None: the stream that the tensors' library
                   works on in this thread. Tensors in CPU memory have none: their bytes are there
                   before the call.
        The rows belong to the job until its end was observed, or until what a stream does after
        `job.wait_on(stream)`: nobody may write to them before. Blocks that are stored already are
        not moved again. Does not block.
        Raises UsageError (lengths that differ, an id out of range, a freed tensor, a stream of
        another device).
        """
        key_array = as_key_array(keys)
        arguments = (
            key_array,
            as_block_ids(block_ids, len(key_array)),
            stream_id_of(stream, self._tensors),
            None if parent is None else as_key_bytes(parent, "parent"),
            check_flag(chain, "chain"),
            hash_request(request),
            check_timeout_s(timeout_s, self._default_timeout_s),
        )
        started = self._jobs.start(
            self._store, self._core_store, lambda job: self._attachment.save(job, *arguments)
        )
        return cast("Job[PutResult]", started)

    def load(
        self,
        keys: object,
        block_ids: object,
        *,
        stream: object = None,
        prefix: bool = True,
        request: str | bytes | int | None = None,
        timeout_s: float | None = None,
    ) -> Job[LoadResult]:
        """Loads blocks into rows of the tensors; what lies on disk is read first.

        block_ids: int[n], the row of each key, each once.
        stream:    as for save: nothing is written before what is on it has run.
        The rows belong to the job until its end was observed; work put on a stream after
        `job.wait_on(stream)` runs after the last byte, but whether it is right is known only by
        the result. Blocks not DONE were not touched, except those in `undefined_block_ids`.
        Does not block. Raises as save.
        """
        key_array = as_key_array(keys)
        ids = as_block_ids(block_ids, len(key_array))
        check_each_once(ids)
        arguments = (
            key_array,
            ids,
            stream_id_of(stream, self._tensors),
            check_flag(prefix, "prefix"),
            hash_request(request),
            check_timeout_s(timeout_s, self._default_timeout_s),
        )
        started = self._jobs.start(
            self._store, self._core_store, lambda job: self._attachment.load(job, *arguments)
        )
        return cast("Job[LoadResult]", started)

    def detach(self) -> None:
        """Lets go of the tensors; later saves and loads raise UsageError. May be called again.

        Raises UsageError while jobs use them.
        """
        self._attachment.detach()

    def stats(self) -> dict[str, Leaf]:
        """Returns counters of the device's transfers, of all tensors attached on it.

        Jobs and bytes by direction and method, `staging_bytes` of device memory,
        `page_locked_bytes` of host memory, `note`: why something is less than best, "" else.
        """
        return dict(self._attachment.stats())

    def __repr__(self) -> str:
        return (
            f"PagedBlocks(device={self.device!r}, block_bytes={self._geometry.block_bytes}, "
            f"num_fragments={self._geometry.num_fragments})"
        )


def attach_tensors(
    core_store: _core.Store,
    namespace_index: int,
    tensors: PagedTensors,
    geometry: PagedGeometry,
    part_bytes: tuple[int, ...],
    settings: TransferSettings,
) -> _core.Attachment:
    """Makes `tensors` known to the transfer engine of their device."""
    ordinal, options = find_device_options(tensors, settings)
    return core_store.attach(
        namespace_index,
        ordinal,
        tensors.places(),
        list(geometry.fragments),
        list(part_bytes),
        [tensor.keeper for tensor in tensors.tensors],
        options,
    )


def find_device_options(
    tensors: PagedTensors, settings: TransferSettings
) -> tuple[int, dict[str, object]]:
    """Returns what the core is to be told of the tensors' device: (cuda_ordinal, options)."""
    ordinal = _HOST_ORDINAL if tensors.device == CPU else int(tensors.device.partition(":")[2])
    options = settings.core_options()
    if ordinal != _HOST_ORDINAL:
        options["calibration_path"] = calibration_path(ordinal)
    return ordinal, options


def calibration_path(ordinal: int) -> str:
    """Returns the file that keeps what was measured of a device; its folder is made.

    In the user's cache folder: $XDG_CACHE_HOME, or ~/.cache. "" where that cannot be made, and then
    each start measures anew.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(root):
        return ""
    folder = os.path.join(root, "kvtier")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError:
        return ""
    return os.path.join(folder, f"calibration-cuda-{ordinal}.txt")


def check_each_once(block_ids: I64) -> None:
    """Raises UsageError when a load names a row twice."""
    # A set is faster than what numpy has, for as many as there are in one load.
    if len(set(block_ids.tolist())) != len(block_ids):
        raise UsageError("block_ids: a row is there twice; one block would overwrite another")


def as_block_ids(block_ids: object, num_blocks: int | None) -> I64:
    """Returns C-contiguous int64[num_blocks], of any number with None.

    Raises UsageError (other shape or type).
    """
    try:
        array = np.asarray(block_ids)
    except (TypeError, ValueError, RuntimeError):
        array = np.empty(0, dtype=object)
    if array.size == 0 and array.ndim == 1 and not num_blocks:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise UsageError(
            f"block_ids: expected whole numbers, one a key, got {show(block_ids)} "
            f"({type(block_ids).__name__})"
        )
    if num_blocks is not None and len(array) != num_blocks:
        raise UsageError(f"block_ids: {len(array)} of them for {num_blocks} keys")
    if array.dtype == np.uint64 and bool(np.any(array > _BLOCK_ID_MAX)):
        raise UsageError("block_ids: a number beyond int64; expected rows of the tensors")
    return np.ascontiguousarray(array, dtype=np.int64)
