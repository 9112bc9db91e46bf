"""Worker processes of tests: each has its own tensors and carries out plans that a pipe brings.

Started with spawn; the functions run in the child.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import kvtier

MIB = 1 << 20
NUM_RANKS = 2
NUM_ROWS = 32
LAYER_SHAPE = (NUM_ROWS, 2, 8, 50)  # Rows of K and V, tokens, bytes of one token.
NUM_LAYERS = 3
PART_BYTES = NUM_LAYERS * 2 * 8 * 50
EMPTY = 0x5C


def make_tensors(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, LAYER_SHAPE, dtype=np.uint8) for _ in range(NUM_LAYERS)]


def rows_of(tensors: list[np.ndarray], block_ids: list[int]) -> np.ndarray:
    """uint8[num_blocks, PART_BYTES]: the bytes of these rows in host order."""
    return np.stack([np.concatenate([it[row].reshape(-1) for it in tensors]) for row in block_ids])


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker needs to begin."""

    handle: kvtier.ArenaHandle
    namespace_id: str
    part_bytes: tuple[int, ...]
    rank: int
    seed: int
    device: str = "cpu"


def serve(setup: WorkerSetup, pipe: Connection) -> None:
    """Answers ("plan", plan, block_ids), ("rows", block_ids), ("clear",), ("stats",), and dies at
    ("die_at", plan, block_ids).
    """
    tensors: list[Any] = list(make_tensors(setup.seed))
    if setup.device != "cpu":
        import torch

        tensors = [torch.from_numpy(it).to(setup.device) for it in tensors]
    with kvtier.ArenaView.open(setup.handle) as view:
        worker = kvtier.PagedWorker(
            view,
            tensors,
            kvtier.PagedGeometry.from_tensors(tensors),
            namespace_id=setup.namespace_id,
            part_bytes=setup.part_bytes,
            parts=setup.rank,
            rank=setup.rank,
        )
        pipe.send("ready")
        while True:
            request = pipe.recv()
            if request[0] == "end":
                break
            pipe.send(_answer(worker, tensors, request))


def _answer(worker: kvtier.PagedWorker, tensors: list[Any], request: tuple[Any, ...]) -> object:
    if request[0] == "plan":
        _, plan, block_ids = request
        try:
            return worker.submit(plan, block_ids).wait(10)
        except kvtier.UsageError as error:
            return kvtier.PlanResult.failed(plan, worker.rank, str(error))
    if request[0] == "rows":
        on_host = [it if isinstance(it, np.ndarray) else it.cpu().numpy() for it in tensors]
        return rows_of(on_host, request[1])
    if request[0] == "stats":
        return worker.stats()
    if request[0] == "clear":
        for tensor in tensors:
            tensor[:] = EMPTY
        return None
    # Begins with the plan and is killed before anybody hears of it.
    worker.submit(request[1], request[2])
    os.kill(os.getpid(), signal.SIGKILL)
    return None


class Worker:
    """The parent's side of one worker process."""

    def __init__(self, setup: WorkerSetup) -> None:
        context = multiprocessing.get_context("spawn")
        self.rank = setup.rank
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(setup, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def wait_ready(self) -> Worker:
        assert self._pipe.poll(60)
        assert self._pipe.recv() == "ready"
        return self

    def send(self, *request: object) -> None:
        self._pipe.send(request)

    def receive(self) -> object:
        assert self._pipe.poll(60)
        return self._pipe.recv()

    def ask(self, *request: object) -> object:
        self.send(*request)
        return self.receive()

    def rows(self, block_ids: list[int]) -> np.ndarray:
        rows = self.ask("rows", block_ids)
        assert isinstance(rows, np.ndarray)
        return rows

    def stop(self) -> None:
        if self.process.is_alive():
            self.send("end")
            self.process.join(10)
        self.process.kill()
        self.process.join()
        self._pipe.close()


def open_namespace(
    path: Path | None = None, **settings: object
) -> tuple[kvtier.BlockStore, kvtier.Namespace]:
    named: dict[str, Any] = {
        "host_bytes": 4 * MIB,
        "disk_bytes": 32 * MIB,
        "shared_arena": True,
        **settings,
    }
    store = kvtier.open(path, **named)
    return store, store.namespace(
        model="m",
        block_bytes=NUM_RANKS * PART_BYTES,
        parts=[PART_BYTES] * NUM_RANKS,
        tp_size=NUM_RANKS,
        fingerprint="f",
    )


def setup_of(
    store: kvtier.BlockStore, ns: kvtier.Namespace, rank: int, device: str = "cpu"
) -> WorkerSetup:
    return WorkerSetup(store.arena_handle(), ns.id, ns.part_bytes, rank, 100 + rank, device)


def start_workers(
    store: kvtier.BlockStore, ns: kvtier.Namespace, device: str = "cpu"
) -> list[Worker]:
    workers = [Worker(setup_of(store, ns, rank, device)) for rank in range(NUM_RANKS)]
    return [worker.wait_ready() for worker in workers]


def carry_out(
    store: kvtier.BlockStore,
    job: kvtier.PlannedJob[Any],
    workers: list[Worker],
    block_ids: list[int],
) -> object:
    """Brings every plan to every rank, all at work at once, and their answers back."""
    while not job.are_plans_exhausted:
        for plan in job.take_plans(timeout_s=10):
            for worker in workers:
                worker.send("plan", plan, block_ids)
            for worker in workers:
                result = worker.receive()
                assert isinstance(result, kvtier.PlanResult)
                assert store.finish_plan(result)
    return job.wait(10)
