"""The least that a verified get does, without a store: read, hash, copy, overlapped by two threads.

What it reaches is the roof of any get that checks its bytes: beside bare reads it shows what the
processors' own work costs, which a device that shares their memory, or their time, feels too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import numpy.typing as npt

from kvtier import _core
from kvtier.bench.raw_transfer import RawRate, RawTransfer, open_raw_transfer

_NUM_THREADS = 2


class VerifiedReads:
    """While one thread hashes and copies what it read, the other one reads. Used from one thread;
    those that it starts end before its calls return.
    """

    def __init__(self, transfers: list[RawTransfer]) -> None:
        self._transfers = transfers
        # Written once: page faults are not part of what a delivery costs.
        self._targets = [np.full(it.arena.nbytes, 0xA5, dtype=np.uint8) for it in transfers]

    def run(self, fds: npt.NDArray[np.int32], offsets_bytes: npt.NDArray[np.uint64]) -> RawRate:
        """Reads, hashes and copies each op once. Raises OSError."""
        next_op = 0
        lock = threading.Lock()
        errors: list[OSError] = []

        def work(transfer: RawTransfer, target: npt.NDArray[np.uint8]) -> None:
            nonlocal next_op
            source = np.frombuffer(transfer.arena, dtype=np.uint8)
            num_ops = len(transfer.buffers)
            while not errors:
                with lock:
                    part = slice(next_op, next_op + num_ops)
                    next_op += num_ops
                if part.start >= len(fds):
                    return
                try:
                    moved = transfer.run(fds[part], offsets_bytes[part]).num_bytes
                except OSError as error:
                    errors.append(error)
                    return
                _core.checksum_and_copy(source[:moved], target[:moved], transfer.op_bytes)

        started_s = time.perf_counter()
        threads = [
            threading.Thread(target=work, args=pair)
            for pair in zip(self._transfers, self._targets, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        num_bytes = len(fds) * self._transfers[0].op_bytes
        return RawRate(num_bytes=num_bytes, seconds=time.perf_counter() - started_s)


@contextmanager
def open_verified_reads(*, depth: int, op_bytes: int) -> Iterator[VerifiedReads]:
    """Opens one with `depth` ops under way at once, shared by its threads."""
    share = max(1, depth // _NUM_THREADS)
    with ExitStack() as stack:
        yield VerifiedReads(
            [
                stack.enter_context(open_raw_transfer(depth=share, op_bytes=op_bytes))
                for _ in range(_NUM_THREADS)
            ]
        )
