"""What the worker's half does alike in the scheduler's process and in a rank's.

Used by the worker's thread only.
"""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import torch
from vllm.v1.kv_offload.base import GPULoadStoreSpec

from kvtier.errors import TimeoutError
from kvtier.results import I64

STUCK_S: Final = 5.0
"""A transfer that takes so long to end is said to be stuck, each time anew."""
FLUSH_WAIT_S: Final = 1.0
"""How long the engine waits for a save when it wants the blocks for something else."""


def split_by_group(device_spec: GPULoadStoreSpec) -> list[I64]:
    """Returns the engine's blocks of each group; vLLM's stand in the order of the groups."""
    block_ids = device_spec.block_ids.astype(np.int64)
    sizes = device_spec.group_sizes
    return np.split(block_ids, np.cumsum(sizes)[:-1]) if len(sizes) > 1 else [block_ids]


def wait_for_flush(jobs: Iterable[Any], clock_s: Callable[[], float]) -> None:
    """Waits for all of the jobs together, at most FLUSH_WAIT_S."""
    until_s = clock_s() + FLUSH_WAIT_S
    for job in jobs:
        with contextlib.suppress(TimeoutError):
            job.wait(max(0.0, until_s - clock_s()))


def make_load_stream(device: str, *, waits_for_steps: bool) -> Any:
    """Returns a stream on which nothing runs; None: loads wait for what the engine's has by then.

    device: "cpu" or "cuda:N".
    """
    if device == "cpu" or waits_for_steps:
        return None
    return torch.cuda.Stream(device=device)
