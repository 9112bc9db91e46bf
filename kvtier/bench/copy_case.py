"""CopyCase: blocks of one geometry that an engine saves and loads, timed and compared. For one
thread.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt

from kvtier import _core
from kvtier.bench.block_source import BenchmarkError
from kvtier.bench.copy_rig import DIRECTIONS, LOAD, SAVE, STREAM_ID, TIMEOUT_S, CopyRig
from kvtier.errors import KvtierError
from kvtier.results import U8

_TENSOR_ALIGNMENT = 4096
_NAMESPACE_ID = bytes(16)
_NO_CHECKSUMS = np.zeros(0, dtype=np.uint64)


@dataclass(frozen=True, kw_only=True)
class BlockShape:
    """How the blocks of a case lie on the device: each fragment in a tensor of its own."""

    fragment_bytes: int
    num_fragments: int
    num_blocks: int

    @property
    def block_bytes(self) -> int:
        return self.fragment_bytes * self.num_fragments

    @property
    def num_bytes(self) -> int:
        return self.block_bytes * self.num_blocks

    def num_places(self, memory_bytes: int) -> int:
        """How many blocks fit into the memory."""
        tensor_bytes = memory_bytes // self.num_fragments // _TENSOR_ALIGNMENT * _TENSOR_ALIGNMENT
        return tensor_bytes // self.fragment_bytes

    def fits(self, memory_bytes: int) -> bool:
        return self.num_blocks <= self.num_places(memory_bytes)


@dataclass(frozen=True, kw_only=True)
class Moved:
    """One transfer that ended well."""

    seconds: float
    """By the device, where it has a clock of its own; else as `waited_s`."""
    waited_s: float
    """From the call until the caller knew."""
    submit_s: float
    """Of the call alone."""
    method: str


@dataclass(frozen=True, kw_only=True)
class _Started:
    job_id: int
    started_s: float
    submit_s: float


class CopyCase:
    """Attached while it is open; a context manager. Checksums are made and checked, as for the
    store.
    """

    def __init__(self, rig: CopyRig, engine: _core.TransferEngine, shape: BlockShape) -> None:
        self.shape = shape
        self._rig = rig
        self._engine = engine
        num_places = shape.num_places(rig.memory_bytes)
        self._tensor_bytes = num_places * shape.fragment_bytes
        order = np.random.default_rng(shape.block_bytes).permutation(num_places)
        self.block_ids = order[: shape.num_blocks].astype(np.int64)
        self._keys = np.zeros((shape.num_blocks, 16), dtype=np.uint8)
        self._keys[:, :8] = np.arange(shape.num_blocks, dtype=np.uint64)[:, None].view(np.uint8)
        offsets = np.arange(shape.num_blocks, dtype=np.uint64) * np.uint64(shape.block_bytes)
        self._slots = {it: offsets + np.uint64(rig.host_address(it)) for it in DIRECTIONS}
        self._checksums = self._sum_slots()
        self._attachment_ids = {it: self._attach(it) for it in DIRECTIONS}

    def __enter__(self) -> CopyCase:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for attachment_id in self._attachment_ids.values():
            # What failed before says more than that a job is still under way.
            with suppress(*(() if error is None else (KvtierError,))):
                self._engine.detach(attachment_id)

    def start(self, direction: str, method: str) -> _Started:
        started_s = time.perf_counter()
        job_id = self._engine.submit(
            direction,
            self._attachment_ids[direction],
            self.block_ids,
            self._slots[direction],
            STREAM_ID,
            method,
            self._keys,
            self._checksums if direction == LOAD else _NO_CHECKSUMS,
        )
        submit_s = time.perf_counter() - started_s
        return _Started(job_id=job_id, started_s=started_s, submit_s=submit_s)

    def finish(self, started: _Started) -> Moved:
        """Raises BenchmarkError (it failed, or does not end)."""
        if not self._engine.wait(started.job_id, TIMEOUT_S):
            raise BenchmarkError(f"a transfer did not end within {TIMEOUT_S:g} s")
        waited_s = time.perf_counter() - started.started_s
        result = self._engine.take(started.job_id)
        if result["error"] is not None:
            raise BenchmarkError(f"a {result['direction']} failed: {result['error']}")
        is_measured = self._rig.is_on_gpu and result["device_s"] > 0
        return Moved(
            seconds=result["device_s"] if is_measured else waited_s,
            waited_s=waited_s,
            submit_s=started.submit_s,
            method=result["method"],
        )

    def move(self, direction: str, method: str) -> Moved:
        return self.finish(self.start(direction, method))

    def move_both_s(self, method: str) -> float:
        """Seconds for a load and a save at once, from outside."""
        started_s = time.perf_counter()
        started = [self.start(direction, method) for direction in (LOAD, SAVE)]
        for it in started:
            self.finish(it)
        return time.perf_counter() - started_s

    def count_wrong_bytes(self, direction: str, method: str) -> int:
        """Moves once more into cleared memory and compares every byte with what should be there."""
        rig, shape = self._rig, self.shape
        source = rig.host_memory(LOAD)
        target = rig.host_memory(SAVE)
        used_bytes = self._tensor_bytes * shape.num_fragments
        target[:used_bytes] = 0
        if direction == LOAD:
            rig.copy_memory(rig.host_address(SAVE), rig.device_memory[LOAD], used_bytes)
        self.move(direction, method)
        if direction == LOAD:
            rig.copy_memory(rig.device_memory[LOAD], rig.host_address(SAVE), used_bytes)
            found, wanted = self._gather(target), source[: shape.num_bytes]
        else:
            found, wanted = target[: shape.num_bytes], self._gather(source)
        return int(np.count_nonzero(found != wanted))

    def _gather(self, memory: U8) -> U8:
        """The blocks of device memory that was copied to `memory`, in host order."""
        shape = self.shape
        used = memory[: self._tensor_bytes * shape.num_fragments]
        tensors = used.reshape(shape.num_fragments, -1, shape.fragment_bytes)
        blocks: U8 = tensors[:, self.block_ids].transpose(1, 0, 2)
        return np.ascontiguousarray(blocks).reshape(-1)

    def _sum_slots(self) -> npt.NDArray[np.uint64]:
        memory = self._rig.host_memory(LOAD)[: self.shape.num_bytes]
        return np.array(
            [
                _core.checksum_part(block.tobytes(), key.tobytes(), _NAMESPACE_ID, 0)
                for block, key in zip(memory.reshape(len(self._keys), -1), self._keys, strict=True)
            ],
            dtype=np.uint64,
        )

    def _attach(self, direction: str) -> int:
        begin, fragment_bytes = self._rig.device_memory[direction], self.shape.fragment_bytes
        indices = range(self.shape.num_fragments)
        return self._engine.attach(
            [(begin + index * self._tensor_bytes, self._tensor_bytes) for index in indices],
            [(index, 0, fragment_bytes, fragment_bytes) for index in indices],
            [self.shape.block_bytes],
        )
