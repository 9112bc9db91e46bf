"""JoinedHalves: what the two halves of a connector do for each other where they share a process.

Not thread-safe: used by the engine's thread only.
"""

from collections.abc import Iterable
from typing import Any, Final

from vllm.v1.outputs import KVConnectorOutput

from kvtier.adapters.vllm.worker import KvtierWorker

IDLE_WAIT_S: Final = 0.003
"""How long an engine that has nothing to compute waits for a load before it sleeps and looks again:
requests that come meanwhile wait too."""


class JoinedHalves:
    """Saves loads the steps of vLLM's that they would wait for.

    vLLM hands a load to its worker when it has made the step, and asks for its end when it has
    started one, to read the answer a step later. Here a load starts as soon as it has its blocks,
    and ends with the step during which it ended.
    """

    def __init__(self, worker: KvtierWorker, worker_half: Any) -> None:
        """worker_half: vLLM's, which `worker` is part of."""
        self._worker = worker
        self._worker_half = worker_half
        self._num_empty_steps = 0
        self._unsaved_block_ids: set[int] = set()
        worker.has_collector = True

    def begin_step(self, *, is_empty: bool) -> None:
        """To be called when a step's loads have their blocks and its saves are about to be chosen.

        is_empty: nothing is computed in it.
        """
        self._num_empty_steps = self._num_empty_steps + 1 if is_empty else 0
        # From here on the worker's half knows of them.
        self._unsaved_block_ids.clear()

    def note_unsaved(self, block_ids: Iterable[int]) -> None:
        """Notes blocks of an ended request that the next step may save, and others may get."""
        self._unsaved_block_ids.update(block_ids)

    def start_load(self, job_id: int, job: Any) -> None:
        """Starts a load that has just got its blocks, unless they may still be saved."""
        saves = [
            device.block_ids.tolist() for _, device, _ in self._worker_half._unsubmitted_store_jobs
        ]
        self._worker.start_load(
            job_id, job.src_spec, job.dst_spec, [self._unsaved_block_ids, *saves]
        )

    def add_ended(self, output: KVConnectorOutput) -> None:
        """Adds to what a step told the transfers that have ended since."""
        # With two in a row the device has nothing to do, and no tokens wait for their way out.
        wait_s = IDLE_WAIT_S if self._num_empty_steps > 1 else 0.0
        with self._worker.collecting(wait_s):
            _, received = self._worker_half.get_finished(set())
        report = self._worker_half.build_connector_worker_meta()
        if received:
            output.finished_recving = received | (output.finished_recving or set())
        if report is not None:
            told = output.kv_connector_worker_meta
            output.kv_connector_worker_meta = report if told is None else told.aggregate(report)
