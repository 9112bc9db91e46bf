"""What transfers cost beside themselves: page-locking of host memory, and the harm to a kernel that
lives on the device's memory. One thread, and one more for the work beside the kernel.
"""

from __future__ import annotations

import mmap
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import numpy as np

from kvtier.bench.copy_case import BlockShape, CopyCase
from kvtier.bench.copy_figures import NUM_TURNS, CopyRun
from kvtier.bench.copy_report import AUTO, HARM, PAGE_LOCK, CopyRow
from kvtier.bench.copy_rig import LOAD, TIMEOUT_S, CopyRig
from kvtier.errors import KvtierError
from kvtier.results import U8
from kvtier.units import GIB, KIB, MIB

_TOUCHING_THREADS = 8
_PAGE_BYTES = 4096
_KERNEL_BLOCK_BYTES = 4 * MIB
_KERNEL_BLOCKS_MAX = 224
_KERNEL_CTAS = 1056
_KERNEL_TURNS = 150
_LEAF_BYTES = 4096


def measure_page_locking(run: CopyRun) -> Iterator[CopyRow]:
    """From fresh memory to page-locked memory: private and shared mappings."""
    if not run.rig.is_on_gpu:
        run.add_note("page-locking was not measured: the host's device has none")
        return
    num_bytes = GIB // 4 if run.is_quick else 2 * GIB
    for name, kind in (("private", mmap.MAP_PRIVATE), ("shared", mmap.MAP_SHARED)):
        touched_s: list[float] = []
        locked_s: list[float] = []
        try:
            for _ in range(NUM_TURNS):
                touch_s, lock_s = _lock_once(run, num_bytes, kind)
                touched_s.append(touch_s)
                locked_s.append(lock_s)
        except KvtierError as error:
            run.add_note(f"page-locking of a {name} mapping was not measured: {error}")
            continue
        ready_s = [touch + lock for touch, lock in zip(touched_s, locked_s, strict=True)]
        row = CopyRow(what=PAGE_LOCK, num_turns=NUM_TURNS, extra={"mapping": name})
        for what, times_s in (("touch", touched_s), ("lock", locked_s), ("ready", ready_s)):
            row.extra[f"{what}_gib_per_s"] = num_bytes / GIB / statistics.median(times_s)
        yield row


def measure_harm(run: CopyRun) -> Iterator[CopyRow]:
    """A loop of kernels that does nothing but read and write the device's memory: alone, beside
    large copies both ways and beside transfers both ways, in turns.
    """
    if not (run.rig.is_on_gpu and run.rig.info["has_kernels"]):
        run.add_note("harm was not measured: it takes a GPU with kernels")
        return
    shape = BlockShape(
        fragment_bytes=32 * KIB,
        num_fragments=28,
        num_blocks=max(1, run.case_bytes // (28 * 32 * KIB)),
    )
    alone_s: list[float] = []
    copies_s: list[float] = []
    transfers_s: list[float] = []
    with ExitStack() as stack:
        case = stack.enter_context(CopyCase(run.rig, run.engine, shape))
        loop = _KernelLoop(run.rig, stack)
        for turn in range(-1, NUM_TURNS):
            for times_s, beside in (
                (alone_s, None),
                (copies_s, lambda: run.rig.copy_both_s(run.case_bytes)),
                (transfers_s, lambda: case.move_both_s(AUTO)),
            ):
                seconds = _run_beside(loop.run_s, beside)
                if turn >= 0:
                    times_s.append(seconds)
    alone, copies, transfers = (statistics.median(it) for it in (alone_s, copies_s, transfers_s))
    yield CopyRow(
        what=HARM,
        direction="both",
        method=AUTO,
        fragment_bytes=shape.fragment_bytes,
        num_fragments=shape.num_fragments,
        num_turns=NUM_TURNS,
        extra={
            "alone_ms": 1e3 * alone,
            "beside_copies_ms": 1e3 * copies,
            "beside_transfers_ms": 1e3 * transfers,
            "kernel_gb_per_s": loop.num_bytes / alone / 1e9,
            "slowdown_beside_copies": copies / alone - 1,
            "slowdown_beside_transfers": transfers / alone - 1,
            "slowdown_beyond_copies": transfers / copies - 1,
        },
    )


def _lock_once(run: CopyRun, num_bytes: int, kind: int) -> tuple[float, float]:
    """Seconds to touch each page, and to lock them."""
    with mmap.mmap(-1, num_bytes, flags=kind | mmap.MAP_ANONYMOUS) as mapping:
        with suppress(OSError):  # A kernel without huge pages.
            mapping.madvise(mmap.MADV_HUGEPAGE)
        memory = np.frombuffer(mapping, dtype=np.uint8)
        try:
            started_s = time.perf_counter()
            _touch(memory)
            touched_s = time.perf_counter()
            run.rig.device.page_lock(memory.ctypes.data, num_bytes)
            locked_s = time.perf_counter()
            run.rig.device.page_unlock(memory.ctypes.data)
        finally:
            del memory  # Else the mapping could not be closed.
    return touched_s - started_s, locked_s - touched_s


def _touch(memory: U8) -> None:
    def write(part: U8) -> None:
        part[::_PAGE_BYTES] = 1

    with ThreadPoolExecutor(_TOUCHING_THREADS) as pool:
        list(pool.map(write, np.array_split(memory, _TOUCHING_THREADS)))


class _KernelLoop:
    """The kernel that gathers blocks, from device memory to device memory with as many CTAs as the
    device has room for, so that memory is its limit.
    """

    def __init__(self, rig: CopyRig, stack: ExitStack) -> None:
        self._rig = rig
        device = rig.device
        num_blocks = min(_KERNEL_BLOCKS_MAX, rig.memory_bytes // _KERNEL_BLOCK_BYTES)
        memory_bytes = num_blocks * _KERNEL_BLOCK_BYTES
        source, target = device.allocate(memory_bytes), device.allocate(memory_bytes)
        stack.callback(device.deallocate, source)
        stack.callback(device.deallocate, target)
        rig.copy_memory(rig.host_address(LOAD), source, memory_bytes)
        fragment = (source, _KERNEL_BLOCK_BYTES, _KERNEL_BLOCK_BYTES)
        self._table_id = device.create_fragment_table([fragment], [_KERNEL_BLOCK_BYTES], num_blocks)
        stack.callback(device.destroy_fragment_table, self._table_id)
        self._block_ids = np.arange(num_blocks, dtype=np.int64)
        self._targets = np.arange(num_blocks, dtype=np.uint64) * np.uint64(_KERNEL_BLOCK_BYTES)
        self._targets += np.uint64(target)
        self._num_leaves = memory_bytes // _LEAF_BYTES
        self._lane = device.create_lane(is_load=False)
        stack.callback(device.destroy_lane, self._lane)
        self._events = (device.create_event(), device.create_event())
        for event_id in self._events:
            stack.callback(device.destroy_event, event_id)
        self.num_bytes = 2 * memory_bytes * _KERNEL_TURNS
        """Read and written by the loop."""

    def run_s(self) -> float:
        device, (begin_id, end_id) = self._rig.device, self._events
        device.record_lane(self._lane, begin_id)
        for _ in range(_KERNEL_TURNS):
            device.submit_gather(
                self._lane,
                self._table_id,
                self._block_ids,
                self._targets,
                self._num_leaves,
                _KERNEL_CTAS,
            )
        device.record_lane(self._lane, end_id)
        device.wait_event(end_id, TIMEOUT_S)
        return device.elapsed_s(begin_id, end_id)


def _run_beside(run: Callable[[], float], beside: Callable[[], object] | None) -> float:
    """Runs while a thread does the other thing over and over. Raises what that raised."""
    if beside is None:
        return run()
    is_over = threading.Event()
    is_begun = threading.Event()

    def repeat() -> None:
        try:
            while not is_over.is_set():
                beside()
                is_begun.set()
        finally:
            is_begun.set()

    with ThreadPoolExecutor(1) as pool:
        repeated = pool.submit(repeat)
        is_begun.wait()
        try:
            seconds = run()
        finally:
            is_over.set()
        repeated.result()
    return seconds
