"""What the C++ extension has for worker processes. Types only: there is no such module."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

class ArenaView:
    """A store's memory in another process. May block: constructor, close."""

    def __init__(self, places: Sequence[tuple[bytes, int, int, int, bytes]]) -> None: ...
    def num_bytes(self) -> int: ...
    def close(self, timeout_s: float) -> None: ...
    def is_closed(self) -> bool: ...
    def abandon_after_fork(self) -> None: ...

class PagedWorker:
    """Keeps the view alive, as do its jobs."""

    def __init__(
        self,
        view: ArenaView,
        namespace_id: bytes,
        part_bytes: Sequence[int],
        parts: tuple[int, int, int, int],
        cuda_ordinal: int,
        tensors: Sequence[tuple[int, int]],
        fragments: Sequence[tuple[int, int, int, int]],
        holders: object,
        options: Mapping[str, object],
    ) -> None:
        """parts: (first, num_parts, rank, generation)."""
    def submit(
        self, job: WorkerJob, plan: Mapping[str, object], block_ids: I64, stream_id: int
    ) -> None:
        """Starts `job`, which has not begun; when it raises, no job was started."""
    def stats(self) -> dict[str, int | str]: ...

class WorkerJob:
    """Made before PagedWorker.submit starts it; keeps the worker alive."""

    def __init__(self, worker: PagedWorker) -> None: ...
    def has_begun(self) -> bool: ...
    def is_ended(self) -> bool: ...
    def wait(self, timeout_s: float) -> tuple[str, str, U64, I64]:
        """(status, message, checksums, undefined_indices). TimeoutError: it goes on."""
    def cancel(self) -> None: ...
    def order_stream_after(self, stream_id: int, timeout_s: float) -> None: ...
