"""CopyRig: a device with memory on both sides, bare copies between them, and a transfer engine.

For one thread, but for start and finish of copies and transfers, which a second one may call for
other directions.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from kvtier import _core
from kvtier.bench.block_source import BenchmarkError
from kvtier.errors import KvtierError, UnsupportedError
from kvtier.paged_tensors import CPU, parse_device
from kvtier.results import U8

SAVE = "save"
LOAD = "load"
DIRECTIONS = (SAVE, LOAD)
TIMEOUT_S = 60.0
STREAM_ID = 0


class CopyRig:
    """Memory of `memory_bytes` a direction on each side. What is loaded never changes: it lies in
    host_memory["load"], and a copy of it is what is saved.
    """

    def __init__(self, device: _core.TransferDevice, memory_bytes: int) -> None:
        self.device = device
        self.info = device.info()
        self.memory_bytes = memory_bytes
        self._stack = ExitStack()
        try:
            self._allocate()
        except BaseException:
            self.close()
            raise

    def _allocate(self) -> None:
        device, memory_bytes = self.device, self.memory_bytes
        self.device_memory: dict[str, int] = {}
        self._host_addresses: dict[str, int] = {}
        self._lanes: dict[str, int] = {}
        self._events: dict[str, tuple[int, int]] = {}
        self._started_s: dict[str, float] = {}
        for direction in DIRECTIONS:
            address = device.allocate(memory_bytes)
            self._stack.callback(device.deallocate, address)
            self.device_memory[direction] = address
            address = device.allocate_page_locked(memory_bytes)
            self._stack.callback(device.deallocate_page_locked, address)
            self._host_addresses[direction] = address
            self._lanes[direction] = device.create_lane(direction == LOAD)
            self._stack.callback(device.destroy_lane, self._lanes[direction])
            self._events[direction] = (device.create_event(), device.create_event())
            for event_id in self._events[direction]:
                self._stack.callback(device.destroy_event, event_id)
        # No pattern: links and memories treat some well.
        words = self.host_memory(LOAD).view(np.uint64)
        words[:] = np.random.default_rng(memory_bytes).integers(
            0, 1 << 64, words.size, dtype=np.uint64
        )
        self.host_memory(SAVE).fill(0)
        self.copy_memory(self._host_addresses[LOAD], self.device_memory[SAVE], memory_bytes)

    @property
    def is_on_gpu(self) -> bool:
        return self.info["kind"] != "host"

    def host_address(self, direction: str) -> int:
        return self._host_addresses[direction]

    def host_memory(self, direction: str) -> U8:
        """uint8[memory_bytes]; of no use once the rig is closed."""
        buffer = (ctypes.c_uint8 * self.memory_bytes).from_address(self._host_addresses[direction])
        return np.frombuffer(memoryview(buffer), dtype=np.uint8)

    def make_engine(self) -> _core.TransferEngine:
        """One that knows the host memory; made anew for each need, closed with the rig."""
        engine = _core.TransferEngine(self.device, {})
        self._stack.callback(self._close_engine, engine)
        for address in self._host_addresses.values():
            engine.add_page_locked_memory(address, self.memory_bytes)
        return engine

    def copy_memory(self, source: int, target: int, num_bytes: int) -> None:
        """One bare copy between any places, waited for."""
        self._submit(LOAD, source, target, num_bytes)
        self.finish_copy(LOAD)

    def start_copy(self, direction: str, num_bytes: int) -> None:
        """Starts one large copy of that direction, beside whatever else is under way."""
        on_device, on_host = self.device_memory[direction], self._host_addresses[direction]
        if direction == SAVE:
            self._submit(direction, on_device, on_host, num_bytes)
        else:
            self._submit(direction, on_host, on_device, num_bytes)

    def finish_copy(self, direction: str) -> float:
        """Returns the seconds that it took: by the device, where it has a clock of its own."""
        begin_id, end_id = self._events[direction]
        self.device.wait_event(end_id, TIMEOUT_S)
        seconds = time.perf_counter() - self._started_s[direction]
        return self.device.elapsed_s(begin_id, end_id) if self.is_on_gpu else seconds

    def copy_s(self, direction: str, num_bytes: int) -> float:
        self.start_copy(direction, num_bytes)
        return self.finish_copy(direction)

    def copy_both_s(self, num_bytes: int) -> float:
        """Seconds for as many bytes each way at once, from outside."""
        started_s = time.perf_counter()
        for direction in DIRECTIONS:
            self.start_copy(direction, num_bytes)
        for direction in DIRECTIONS:
            self.finish_copy(direction)
        return time.perf_counter() - started_s

    def close(self) -> None:
        self._stack.close()

    def _close_engine(self, engine: _core.TransferEngine) -> None:
        if not engine.close(TIMEOUT_S):
            # What the device may still read or write is never given back.
            self._stack.pop_all()

    def _submit(self, direction: str, source: int, target: int, num_bytes: int) -> None:
        lane = self._lanes[direction]
        begin_id, end_id = self._events[direction]
        place = [np.array([it], dtype=np.uint64) for it in (source, target, num_bytes)]
        self._started_s[direction] = time.perf_counter()
        self.device.record_lane(lane, begin_id)
        self.device.submit_copies(lane, *place)
        self.device.record_lane(lane, end_id)


def open_device(wanted: str) -> tuple[_core.TransferDevice, str]:
    """Returns a device and, where it is not the one that was hoped for, why.

    wanted: "auto" (the first GPU, else the host), "host", or "cuda:N". Raises UnsupportedError (a
    GPU that was asked for is not there), UsageError (no such name).
    """
    if wanted in ("host", CPU):
        return _core.TransferDevice.host(), "as asked"
    is_auto = wanted == "auto"
    ordinal = 0 if is_auto else int(parse_device(wanted, "device").partition(":")[2])
    # Else streams share few of the GPU's queues, and one that waits holds up another's work.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    try:
        return _core.TransferDevice.cuda(ordinal), ""
    except UnsupportedError as error:
        if not is_auto:
            raise
        return _core.TransferDevice.host(), str(error)


@contextmanager
def open_rig(device: _core.TransferDevice, memory_bytes: int) -> Iterator[CopyRig]:
    """Raises BenchmarkError where the memory cannot be had."""
    try:
        rig = CopyRig(device, memory_bytes)
    except (KvtierError, MemoryError) as error:
        raise BenchmarkError(
            f"cannot have {memory_bytes} bytes on each side, twice; try less with --bytes: {error}"
        ) from error
    try:
        yield rig
    finally:
        rig.close()
