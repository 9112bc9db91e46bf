"""A replay in a process of its own: killed, gone on with, and failing. One child at a time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvtier.bench.replay import ReplayCounts
from kvtier.bench.replay_process import (
    ReplayEvent,
    ReplayProcess,
    ReplayProcessError,
    ReplayTask,
)

NUM_REQUESTS = 200
CHAIN_BLOCKS = 4


@pytest.fixture
def task(tmp_path: Path) -> ReplayTask:
    """Each chain comes again fifty requests later."""
    requests = [
        {"hash_ids": [100 * (i // 100 * 50 + i % 50) + b for b in range(CHAIN_BLOCKS)]}
        for i in range(NUM_REQUESTS)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(request) + "\n" for request in requests))
    return ReplayTask(
        trace=str(trace),
        path=str(tmp_path / "store"),
        host_bytes=4 << 20,
        disk_bytes=64 << 20,
        block_bytes=64 << 10,
        first=0,
        stop=NUM_REQUESTS,
    )


def run_to_end(task: ReplayTask) -> list[ReplayEvent]:
    with ReplayProcess(task, timeout_s=30) as process:
        return list(process.events())


def test_a_clean_restart_finds_every_block_again(task: ReplayTask) -> None:
    events = run_to_end(replace(task, restart_at=50))
    assert [event.num_found for event in events if event.name == "opened"] == [0, 200]
    total = ReplayCounts()
    for event in events:
        total.add(event.counts)
    assert total.requests == NUM_REQUESTS
    assert total.wrong_bytes == 0
    assert total.host.hits + total.disk.hits == NUM_REQUESTS * CHAIN_BLOCKS // 2
    assert total.disk.bytes_read > 0


def test_a_killed_replay_is_gone_on_with(task: ReplayTask) -> None:
    total = ReplayCounts()
    num_done = 0
    with ReplayProcess(task, timeout_s=30) as process:
        for event in process.events():
            total.add(event.counts)
            num_done = max(num_done, event.num_done)
            if num_done >= 100:
                break
        process.kill()
    events = run_to_end(replace(task, first=num_done))
    for event in events:
        total.add(event.counts)
    assert total.requests == NUM_REQUESTS
    assert total.wrong_bytes == 0
    assert events[-1].name == "closed"


def test_a_child_that_fails_is_an_error(task: ReplayTask, capfd: pytest.CaptureFixture) -> None:
    with pytest.raises(ReplayProcessError, match="exit status"):
        run_to_end(replace(task, trace="missing"))
    assert "cannot read trace" in capfd.readouterr().err


def test_a_child_that_takes_too_long_is_ended(task: ReplayTask) -> None:
    with (
        ReplayProcess(task, timeout_s=0.01) as process,
        pytest.raises(ReplayProcessError, match="exit status -9"),
    ):
        list(process.events())
