"""Ring: an io_uring of its own for measurements and for tests that look at bytes on disk.

Used from one thread at a time. Calls that wait release the GIL.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from kvtier.liburing._ring import ffi, lib
from kvtier.liburing.ring_errors import ring_error

if TYPE_CHECKING:
    from kvtier.liburing._ring import Batch, CData, Completion, Op

DEPTH_MAX = 4096
OP_BYTES_MAX = 1 << 30


@dataclass(frozen=True, kw_only=True)
class RingOp:
    """One transfer. `buffer` is any writable buffer (any buffer to write), whole.

    fd: a descriptor, or with `is_fd_registered` the index of a registered one. buffer_index: the
    registered buffer in which `buffer` lies; None: a plain transfer.
    """

    fd: int
    offset_bytes: int
    buffer: memoryview | npt.NDArray[np.uint8]
    is_write: bool = False
    is_fd_registered: bool = False
    buffer_index: int | None = None


@dataclass(frozen=True, kw_only=True)
class RingCompletion:
    """The op's place in the order of submission, and what the kernel answered."""

    op_index: int
    result: int
    """Bytes moved, or -errno."""


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """Ops that ended whole, their bytes, and the time from the first submission to the last end."""

    num_ops: int
    num_bytes: int
    elapsed_ns: int


class Ring:
    """A context manager. Buffers must stay alive until their ops were reaped."""

    def __init__(self, depth: int) -> None:
        """depth: 1..4096 ops in flight. Raises OSError with cause and remedy."""
        if not 1 <= depth <= DEPTH_MAX:
            raise ValueError(f"depth: expected 1 to {DEPTH_MAX}, got {depth}")
        self._ring: CData | None = None
        status = ffi.new("int *")
        ring = lib.kvtier_open(depth, status)
        if ring == ffi.NULL:
            raise ring_error(cast("int", status[0]), f"cannot set up a ring of depth {depth}")
        self._ring = ring
        self.depth = depth
        self._num_submitted = 0
        self._registered: object = None
        self._in_flight: dict[int, object] = {}

    def register_buffers(self, buffers: Sequence[memoryview | npt.NDArray[np.uint8]]) -> None:
        """Page-locks them for fixed transfers. ENOMEM where the memlock limit is too low."""
        views = [_view(buffer) for buffer in buffers]
        addresses = np.array([_address(view) for view in views], dtype=np.uint64)
        lengths = np.array([view.nbytes for view in views], dtype=np.uint64)
        status = lib.kvtier_register_buffers(
            self._open_ring, _pointer("uint64_t[]", addresses), _pointer("uint64_t[]", lengths),
            len(views),
        )  # fmt: skip
        if status < 0:
            total_bytes = int(lengths.sum())
            raise ring_error(status, f"cannot register {len(views)} buffers of {total_bytes} bytes")
        self._registered = views

    def register_files(self, fds: Sequence[int]) -> None:
        """Makes ops refer to `fds` by index; the files may be closed afterwards."""
        array = np.array(fds, dtype=np.int32)
        status = lib.kvtier_register_files(self._open_ring, _pointer("int32_t[]", array), len(fds))
        if status < 0:
            raise ring_error(status, f"cannot register {len(fds)} files")

    def submit(self, ops: Sequence[RingOp]) -> range:
        """Starts ops, all or none; returns their indices. EBUSY: more than the ring is deep."""
        listed = ffi.new("kvtier_op[]", max(1, len(ops)))
        views = []
        for position, op in enumerate(ops):
            view = _view(op.buffer)
            views.append(view)
            item = cast("Op", listed[position])
            item.is_write = op.is_write
            item.fd = op.fd
            item.is_fd_fixed = op.is_fd_registered
            item.buffer_index = -1 if op.buffer_index is None else op.buffer_index
            item.address = _address(view)
            item.offset_bytes = op.offset_bytes
            item.length_bytes = _check_op_bytes(view.nbytes)
            item.user_data = self._num_submitted + position
        status = lib.kvtier_submit(self._open_ring, listed, len(ops))
        if status < 0:
            raise ring_error(status, f"cannot submit {len(ops)} ops")
        indices = range(self._num_submitted, self._num_submitted + len(ops))
        self._in_flight.update(zip(indices, views, strict=True))
        self._num_submitted = indices.stop
        return indices

    def reap(self, num_min: int = 1) -> list[RingCompletion]:
        """Waits for at least `num_min` completions (fewer when fewer are in flight)."""
        completions = ffi.new("kvtier_completion[]", self.depth)
        num_reaped = lib.kvtier_reap(self._open_ring, completions, num_min, self.depth)
        if num_reaped < 0:
            raise ring_error(num_reaped, "cannot wait for completions")
        reaped = []
        for position in range(num_reaped):
            item = cast("Completion", completions[position])
            self._in_flight.pop(item.user_data, None)
            reaped.append(RingCompletion(op_index=item.user_data, result=item.result))
        return reaped

    def run_batch(
        self,
        *,
        fds: npt.NDArray[np.int32],
        offsets_bytes: npt.NDArray[np.uint64],
        buffers: Sequence[memoryview | npt.NDArray[np.uint8]],
        is_write: bool = False,
        is_fd_registered: bool = False,
        is_buffer_registered: bool = False,
        time_limit_s: float = 3600.0,
    ) -> BatchResult:
        """Moves one buffer's length at each place, `depth` at once, in order, until the deadline.

        fds int32[n], offsets_bytes uint64[n]. buffers: of equal lengths, at least as many as
        `depth` or n; they are taken in turn as they get free, so with n of them op i uses the i-th.
        Raises OSError (the errno of the first op that failed; EIO for a short one).
        """
        views = [_view(buffer) for buffer in buffers]
        op_bytes = _check_op_bytes(views[0].nbytes)
        if any(view.nbytes != op_bytes for view in views):
            raise ValueError("buffers: equal lengths are needed")
        if len(fds) != len(offsets_bytes):
            raise ValueError(f"{len(fds)} fds for {len(offsets_bytes)} offsets")
        places = np.ascontiguousarray(fds, dtype=np.int32)
        offsets = np.ascontiguousarray(offsets_bytes, dtype=np.uint64)
        addresses = np.array([_address(view) for view in views], dtype=np.uint64)
        batch = cast("Batch", ffi.new("kvtier_batch *"))
        batch.is_write = is_write
        batch.is_fd_fixed = is_fd_registered
        batch.is_buffer_fixed = is_buffer_registered
        batch.op_bytes = op_bytes
        batch.num_ops = len(places)
        batch.num_buffers = len(views)
        batch.time_limit_ns = int(time_limit_s * 1e9)
        # The batch only points to these: they live until the call returned.
        keeping = [_pointer("int32_t[]", places), _pointer("uint64_t[]", offsets),
                   _pointer("uint64_t[]", addresses)]  # fmt: skip
        batch.fds, batch.offsets_bytes, batch.buffers = keeping
        status = lib.kvtier_run_batch(self._open_ring, batch)
        if status < 0:
            raise ring_error(status, "cannot run batch")
        if batch.failed_op >= 0:
            raise _op_error(batch, int(offsets[batch.failed_op]))
        return BatchResult(
            num_ops=batch.num_done,
            num_bytes=batch.num_done * op_bytes,
            elapsed_ns=batch.elapsed_ns,
        )

    @property
    def num_in_flight(self) -> int:
        return lib.kvtier_num_in_flight(self._open_ring)

    def close(self) -> None:
        """Waits for what is in flight. Idempotent."""
        ring, self._ring = self._ring, None
        if ring is not None:
            lib.kvtier_close(ring)
            self._in_flight.clear()

    def __enter__(self) -> Ring:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_ring"):
            self.close()

    @property
    def _open_ring(self) -> CData:
        if self._ring is None:
            raise ValueError("the ring is closed")
        return self._ring


def _view(buffer: memoryview | npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The same bytes as an array, which keeps them alive."""
    return np.frombuffer(buffer, dtype=np.uint8)


def _address(view: npt.NDArray[np.uint8]) -> int:
    return int(view.ctypes.data)


def _pointer(declaration: str, array: npt.NDArray[np.generic]) -> CData:
    return ffi.from_buffer(declaration, array)


def _check_op_bytes(num_bytes: int) -> int:
    if not 1 <= num_bytes <= OP_BYTES_MAX:
        raise ValueError(f"an op moves 1 to {OP_BYTES_MAX} bytes, got {num_bytes}")
    return num_bytes


def _op_error(batch: Batch, offset_bytes: int) -> OSError:
    action = "write" if batch.is_write else "read"
    place = f"offset_bytes={offset_bytes} want_bytes={batch.op_bytes}"
    if batch.failed_result < 0:
        code = -batch.failed_result
        return OSError(code, f"cannot {action}: {place}: {os.strerror(code)}")
    return OSError(
        errno.EIO, f"cannot {action}: {place} got_bytes={batch.failed_result}: ended short"
    )
