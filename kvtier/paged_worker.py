"""PagedWorker: carries out a store's plans in another process, on its own tensors. Thread-safe."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from kvtier import _core
from kvtier.arena_view import ArenaView
from kvtier.block_plan import BlockPlan, PlanResult
from kvtier.call_arguments import check_seconds
from kvtier.engine_streams import parse_stream, stream_id_of
from kvtier.errors import UsageError
from kvtier.paged_blocks import as_block_ids, check_each_once, find_device_options
from kvtier.paged_geometry import PagedGeometry
from kvtier.paged_tensors import read_tensors
from kvtier.started_job import end_lost_job
from kvtier.statistics import Leaf
from kvtier.transfer_settings import TransferSettings
from kvtier.units import parse_whole_number, show

_RANK_MAX = 2**32 - 1


class WorkerJob:
    """One plan under way. Made by PagedWorker.submit().

    Rows and slots belong to the job until its end was observed by wait(), poll() or done(), or
    until what a stream does after wait_on(stream).
    """

    __slots__ = ("_core_job", "_plan", "_result", "_worker")

    def __init__(self, worker: PagedWorker, core_job: _core.WorkerJob, plan: BlockPlan) -> None:
        self._worker = worker
        self._core_job = core_job
        self._plan = plan
        self._result: PlanResult | None = None

    def wait(self, timeout_s: float | None = None) -> PlanResult:
        """Blocks until the plan was carried out, and returns what to answer the store.

        Raises TimeoutError after `timeout_s` (None: waits on): it then goes on.
        """
        seconds = math.inf if timeout_s is None else check_seconds(timeout_s, "timeout_s")
        if self._result is None:
            status, message, checksums, undefined_indices = self._core_job.wait(seconds)
            self._result = PlanResult(
                plan_id=self._plan.plan_id,
                arena_id=self._plan.arena_id,
                rank=self._worker.rank,
                status=status,
                message=message,
                first_part=self._worker.parts.start,
                num_parts=len(self._worker.parts),
                checksums=checksums,
                undefined_indices=undefined_indices,
            )
        return self._result

    def poll(self) -> PlanResult | None:
        """Returns what wait() would, or None before the end. Does not block."""
        return self.wait(0) if self.done() else None

    def done(self) -> bool:
        """Says whether the plan was carried out. Does not block."""
        return self._core_job.is_ended()

    @property
    def result(self) -> PlanResult:
        """Returns what wait() does. Raises UsageError before the end."""
        if not self.done():
            raise UsageError("the plan is still being carried out; use wait(), poll() or done()")
        return self.wait(0)

    def cancel(self) -> None:
        """Asks it to end early; its result still comes, "failed" then. Does not block."""
        self._core_job.cancel()

    def wait_on(self, stream: object, timeout_s: float | None = None) -> None:
        """Orders work that is put on `stream` from now on after the last byte.

        Blocks only until the copies were handed to the device. Raises TimeoutError after
        `timeout_s` (None: waits on), UsageError (a stream of another device).
        """
        seconds = math.inf if timeout_s is None else check_seconds(timeout_s, "timeout_s")
        self._core_job.order_stream_after(parse_stream(stream), seconds)

    def __repr__(self) -> str:
        return f"WorkerJob(plan_id={self._plan.plan_id}, done={self._core_job.is_ended()})"


class PagedWorker:
    """Moves one rank's parts of blocks between a store's arena and the rank's paged tensors.

    tensors, geometry: as for Namespace.attach(), of this rank's parts only: they add up to the
                       geometry's block_bytes.
    namespace_id:      Namespace.id, or its 16 bytes.
    part_bytes:        Namespace.part_bytes, of all ranks.
    parts:             the parts that the tensors hold: a position, or several in a row.
    rank:              what the store's calls count this process as, from 0.
    transfer_ctas, gentle_saves: as the settings of these names; None: the defaults.
    The tensors stay alive while the worker or a job of it does.
    Raises UsageError (parts that are not there or do not add up, tensors as for attach()),
    UnsupportedError (no driver, or no such device), ClosedError (the view is closed).
    """

    __slots__ = ("_core_worker", "_geometry", "_parts", "_rank", "_tensors", "_view")

    def __init__(
        self,
        view: ArenaView,
        tensors: object,
        geometry: PagedGeometry,
        *,
        namespace_id: str | bytes,
        part_bytes: Iterable[int],
        parts: int | Iterable[int],
        rank: int,
        transfer_ctas: int | None = None,
        gentle_saves: bool | None = None,
    ) -> None:
        if not isinstance(view, ArenaView):
            raise UsageError(f"view: expected ArenaView.open(handle), got {show(view)}")
        if not isinstance(geometry, PagedGeometry):
            raise UsageError(
                f"geometry: expected a PagedGeometry, got {type(geometry).__name__}; make one with "
                "PagedGeometry.from_tensors(tensors)"
            )
        self._view = view
        self._tensors = read_tensors(tensors)
        self._geometry = geometry
        self._rank = check_rank(rank)
        self._parts = _as_part_range(parts)
        sizes = [parse_whole_number(it, "part_bytes") for it in part_bytes]
        if self._parts.stop > len(sizes):
            raise UsageError(
                f"parts: there is no part {self._parts.stop - 1}, a block has {len(sizes)}"
            )
        own_bytes = sum(sizes[it] for it in self._parts)
        if own_bytes != geometry.block_bytes:
            raise UsageError(
                f"parts: {show(list(self._parts))} have {own_bytes} bytes, the fragments of the "
                f"geometry {geometry.block_bytes}"
            )
        settings = TransferSettings.parse(
            {"transfer_ctas": transfer_ctas, "gentle_saves": gentle_saves}
        )
        ordinal, options = find_device_options(self._tensors, settings)
        self._core_worker = _core.PagedWorker(
            view._core_view,
            _as_namespace_id(namespace_id),
            sizes,
            (self._parts.start, len(self._parts), self._rank, view.generation),
            ordinal,
            self._tensors.places(),
            list(geometry.fragments),
            [tensor.keeper for tensor in self._tensors.tensors],
            options,
        )

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def parts(self) -> range:
        """Returns the positions of the parts that its tensors hold."""
        return self._parts

    @property
    def device(self) -> str:
        """Returns "cpu" or "cuda:N"."""
        return self._tensors.device

    def submit(self, plan: BlockPlan, block_ids: object, stream: object = None) -> WorkerJob:
        """Starts to carry out a plan. Does not block.

        block_ids: int[num_keys], the row of each key of the call, by position; the plan picks its
                   own. In a load each row once.
        stream:    as for PagedBlocks.save(): what is on it by now comes first.
        Raises UsageError and touches nothing: a plan of another store or namespace, or of parts of
        another size; one that was submitted before to a worker of this rank over the view, or made
        before this process took its place; a row out of range. Answer the store with
        PlanResult.failed() then.
        """
        if not isinstance(plan, BlockPlan):
            raise UsageError(f"plan: expected a BlockPlan, got {show(plan)}")
        if self._rank >= plan.num_ranks:
            raise UsageError(
                f"plan: it is for {plan.num_ranks} ranks, this worker is rank {self._rank}; nobody "
                "would wait for it, and its slots would be others' meanwhile"
            )
        ids = as_block_ids(block_ids, None)
        used = ids[plan.block_indices[plan.block_indices < len(ids)]]
        if plan.is_load:
            check_each_once(used)
        stream_id = stream_id_of(stream, self._tensors)
        fields = {name: getattr(plan, name) for name in BlockPlan.__dataclass_fields__}
        core_job = _core.WorkerJob(self._core_worker)
        job = WorkerJob(self, core_job, plan)
        try:
            self._core_worker.submit(core_job, fields, ids, stream_id)
            return job
        except BaseException as error:
            end_lost_job(core_job, error)
            raise

    def stats(self) -> dict[str, Leaf]:
        """Returns counters of the device's transfers, as PagedBlocks.stats().

        `page_lock`: "ready", "pending", "refused" or "unneeded"; `page_lock_note`: why refused.
        """
        return dict(self._core_worker.stats())

    def __repr__(self) -> str:
        return (
            f"PagedWorker(rank={self._rank}, parts={self._parts}, device={self.device!r}, "
            f"block_bytes={self._geometry.block_bytes})"
        )


def check_rank(rank: object) -> int:
    """Returns a rank. Raises UsageError."""
    if isinstance(rank, (int, np.integer)) and not isinstance(rank, bool) and 0 <= rank < _RANK_MAX:
        return int(rank)
    raise UsageError(f"rank: expected a whole number from 0 on, got {show(rank)}")


def _as_part_range(parts: object) -> range:
    listed = list(parts) if isinstance(parts, Iterable) else [parts]
    whole = [parse_whole_number(it, "parts") for it in listed]
    if not whole or whole[0] < 0 or whole != list(range(whole[0], whole[0] + len(whole))):
        raise UsageError(
            f"parts: expected a position from 0 on, or several in a row, got {show(parts)}; make "
            "one worker for each stretch of parts"
        )
    return range(whole[0], whole[0] + len(whole))


def _as_namespace_id(namespace_id: object) -> bytes:
    raw = namespace_id
    if isinstance(namespace_id, str):
        try:
            raw = bytes.fromhex(namespace_id)
        except ValueError:
            raw = b""
    if not isinstance(raw, bytes) or len(raw) != 16:
        raise UsageError(
            f"namespace_id: expected Namespace.id (32 hexadecimal digits) or its 16 bytes, got "
            f"{show(namespace_id)}"
        )
    return raw
