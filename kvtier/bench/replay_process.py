"""A replay in a process of its own, so that it can be killed in the middle: both of its sides.

The child runs `python -m kvtier.bench.replay_process` and reports one JSON object a line. Each
side is used from one thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Timer

import numpy as np

import kvtier
from kvtier.bench.replay import Replay, ReplayCounts, counts_from_json, tier_counters
from kvtier.bench.trace import Request, read_trace
from kvtier.outcome import Tier

_MODEL = "kvtier-replay"
_FLUSH_S_MAX = 60.0


class ReplayProcessError(RuntimeError):
    """The child ended otherwise than it was asked to."""


@dataclass(frozen=True, kw_only=True)
class ReplayTask:
    """What a child replays: requests first..stop, with a clean restart before `restart_at`."""

    trace: str
    path: str
    host_bytes: int
    disk_bytes: int
    block_bytes: int
    first: int
    stop: int
    restart_at: int | None = None


@dataclass(frozen=True, kw_only=True)
class ReplayEvent:
    """One report of the child: "opened", "progress" or "closed"; other fields as they apply."""

    name: str
    open_s: float = 0.0
    close_s: float = 0.0
    num_found: int = 0
    """Blocks on disk that a lookup found right after opening."""
    num_done: int = 0
    """Requests, from the trace's start."""
    num_stored: int = 0
    """Blocks on disk."""
    counts: ReplayCounts = field(default_factory=ReplayCounts)
    """What is new since the last report."""


class ReplayProcess:
    """The parent's side. A context manager: no child outlives it."""

    def __init__(self, task: ReplayTask, *, timeout_s: float = 600.0) -> None:
        command = [sys.executable, "-m", "kvtier.bench.replay_process"]
        self._process = subprocess.Popen(
            [*command, json.dumps(dataclasses.asdict(task))], stdout=subprocess.PIPE, text=True
        )
        self._is_killed = False
        # A child that hangs must not hang the parent: killing it ends the pipe.
        self._timer = Timer(timeout_s, self._process.kill)
        self._timer.daemon = True
        self._timer.start()

    def __enter__(self) -> ReplayProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def events(self) -> Iterator[ReplayEvent]:
        """Yields reports as they come, until the child ends.

        Raises ReplayProcessError when it ends badly and `kill` was not called.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            values = json.loads(line)
            if "counts" in values:
                values["counts"] = counts_from_json(values["counts"])
            yield ReplayEvent(**values)
        status = self._process.wait()
        if status != 0 and not self._is_killed:
            raise ReplayProcessError(f"the replaying process failed: exit status {status}")

    def kill(self) -> None:
        """Sends SIGKILL (the same as kill -9) unless the child has ended, and waits for its end."""
        self._is_killed = True
        self._process.kill()
        self._process.wait()


def main() -> int:
    task = ReplayTask(**json.loads(_parse_arguments().task))
    requests = read_trace(task.trace, num_requests_max=task.stop)
    first = task.first
    for stop in (task.restart_at, task.stop):
        if stop is not None and first < stop:
            _replay_part(task, requests, first, stop)
            first = stop
    return 0


def _replay_part(task: ReplayTask, requests: list[Request], first: int, stop: int) -> None:
    started_s = time.perf_counter()
    store = kvtier.open(task.path, host_bytes=task.host_bytes, disk_bytes=task.disk_bytes)
    open_s = time.perf_counter() - started_s
    namespace = store.namespace(
        model=_MODEL, block_bytes=task.block_bytes, block_tokens=512, fingerprint="none"
    )
    replay = Replay(store, namespace, requests)
    tiers = np.asarray(namespace.lookup(replay.keys, prefix=False).tiers)
    _say("opened", open_s=open_s, num_found=int(np.count_nonzero(tiers == int(Tier.DISK))))

    def report(num_done: int, counts: ReplayCounts) -> None:
        num_stored = tier_counters(store)["disk"]["blocks"]
        values = dataclasses.asdict(counts)
        _say("progress", num_done=num_done, num_stored=num_stored, counts=values)

    replay.take_counts()  # Making the keys is not part of the replay.
    replay.run(first=first, stop=stop, report=report)
    store.flush(timeout_s=_FLUSH_S_MAX)
    report(stop, replay.take_counts())
    started_s = time.perf_counter()
    store.close()
    _say("closed", close_s=time.perf_counter() - started_s)


def _say(name: str, **values: object) -> None:
    print(json.dumps({"name": name, **values}), flush=True)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Replays a part of a trace; reports in JSON.")
    parser.add_argument("task", help="the fields of ReplayTask as one JSON object")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
