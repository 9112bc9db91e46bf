"""`kvtier top`: rates from what a store told, frames with and without a terminal."""

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from child_process import ROOT

import kvtier
from kvtier.cli.main import main
from kvtier.cli.top import frame_lines, spark_line
from kvtier.cli.top_history import MINUTE_S, TopHistory
from kvtier.live_state import LiveEvent, LiveState
from kvtier.statistics import NUM_LATENCY_BUCKETS, nest_statistics

BLOCK_BYTES = 4096


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Of a store that is open and delivered two of four blocks."""
    with kvtier.open(tmp_path / "store", host_bytes="4MiB", disk_bytes="64MiB") as store:
        ns = store.namespace(model="m", block_bytes=BLOCK_BYTES, block_tokens=1, fingerprint="f")
        ns.put(ns.keys(range(2)), bytes(2 * BLOCK_BYTES))
        ns.get(ns.keys(range(4)), bytearray(4 * BLOCK_BYTES))
        before = store.stats()["live_updates"]
        ns.lease(ns.keys(range(2)), owner="router")
        while store.stats()["live_updates"] == before:
            store.flush()
        yield tmp_path / "store"


def make_live(
    time_s: float, *, opened_s: float = 0.0, hits: int = 0, asked: int = 0, num_fast: int = 0
) -> LiveState:
    """A state in which disk delivered `hits` blocks of a gigabyte each."""
    buckets = [0] * NUM_LATENCY_BUCKETS
    buckets[4] = num_fast
    tier = {
        "hits": hits,
        "bytes_read": hits * 10**9,
        "bytes_written": 0,
        "bytes_used": 1,
        "bytes_capacity": 4,
        "health": "degraded",
        "health_reason": "a disk that is slow",
    }
    flat: dict[str, object] = {
        "get_blocks": asked,
        "lookup_blocks": 0,
        "hit_blocks": hits,
        "disk": tier,
        "host": None,
        "latency": {"get": {"calls": num_fast, "buckets": buckets}},
    }
    return LiveState(
        path="/data/kv",
        pid=7,
        state="running",
        now_s=time_s,
        opened_s=opened_s,
        age_s=0.0,
        statistics=nest_statistics(flat),
        holders=(),
        events=(LiveEvent(level="warning", text="something", age_s=65.0),),
    )


def test_rates_are_those_of_the_window() -> None:
    history = TopHistory()
    for second in range(100):
        history.add(make_live(second, hits=2 * second, asked=4 * second))
    assert history.hit_rate(1.0) == 0.5
    assert history.bytes_per_s("disk", "read", 1.0) == pytest.approx(2e9)
    assert history.bytes_per_s("disk", "written", 1.0) == 0.0
    assert history.bytes_per_s("disk", "read", MINUTE_S) == pytest.approx(2e9)
    history.add(make_live(100, hits=2 * 99 + 40, asked=4 * 99 + 40))
    assert history.hit_rate(1.0) == 1.0
    assert history.bytes_per_s("disk", "read", 1.0) == pytest.approx(40e9)
    assert 0.5 < (history.hit_rate(MINUTE_S) or 0) < 0.7
    assert len(history.latencies_p99_s()) <= MINUTE_S + 1


def test_one_sample_has_no_rates() -> None:
    history = TopHistory()
    history.add(make_live(5, hits=10, asked=10))
    assert history.hit_rate(1.0) is None
    assert history.bytes_per_s("disk", "read", 1.0) == 0.0
    assert history.latencies_p99_s() == []


def test_a_store_that_was_opened_anew_begins_a_new_history() -> None:
    history = TopHistory()
    history.add(make_live(10, hits=100, asked=100))
    history.add(make_live(11, opened_s=10.5, hits=1, asked=1))
    assert history.hit_rate(1.0) is None
    assert history.bytes_per_s("disk", "read", 1.0) == 0.0


def test_latencies_are_those_between_two_samples() -> None:
    history = TopHistory()
    for second, num_fast in enumerate((0, 5, 5, 6)):
        history.add(make_live(second, num_fast=num_fast))
    assert history.latencies_p99_s() == [16e-6, None, 16e-6]


def test_sparks_stand_for_powers_of_two() -> None:
    assert spark_line([1e-3, 2e-3, None, 4e-3]) == "▆▇ █  at most 4.0 ms"
    assert spark_line([1e-9, 1.0]) == "▁█  at most 1.0 s"
    assert spark_line([]) == spark_line([None, 0.0]) == "no calls yet"


def test_a_frame_says_what_ails_a_tier() -> None:
    history = TopHistory()
    history.add(make_live(0))
    live = make_live(1, hits=3, asked=4)
    history.add(live)
    text = "\n".join(frame_lines(live, history, 1.0))
    assert "/data/kv: running, pid 7" in text
    assert "delivered 3 (75.0%); last 1 s 75.0%" in text
    assert "disk  degraded █████░" in text
    assert "(a disk that is slow)" in text
    assert "host  none" in text
    assert "1 min 5 s ago, warning: something" in text


def test_without_a_terminal_one_frame_is_printed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", str(folder), "--interval", "0.1"]) == 0
    text = capsys.readouterr().out
    assert text.count("blocks asked for 4, delivered 2 (50.0%)") == 1
    assert "lease of 'router': 2 blocks, 8 KiB" in text


def test_frames_as_json_are_one_object_a_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", str(folder), "--interval", "0.1", "--count", "2", "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["cache_hit_rate"] == second["cache_hit_rate"] == 0.5
    assert first["hit_rate_lately"] is None
    assert set(second["bytes_per_s"]) == {"host", "disk"}


def test_a_terminal_shows_a_screen_until_q_is_pressed(folder: Path) -> None:
    main_fd, child_fd = pty.openpty()
    command = [sys.executable, "-m", "kvtier", "top", str(folder), "--interval", "0.1"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
    with subprocess.Popen(
        command, stdin=child_fd, stdout=child_fd, stderr=child_fd, cwd=ROOT, env=environment
    ) as process:
        os.close(child_fd)
        shown = b""
        while b"q ends" not in shown:
            select.select([main_fd], [], [], 30)
            shown += os.read(main_fd, 65536)
        os.write(main_fd, b"q")
        assert process.wait(timeout=30) == 0
    os.close(main_fd)
    assert b"delivered 2" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["top", "/nowhere"], "does not exist"),
        (["top", "--interval", "0"], "--interval"),
        (["top", "--interval", "nan"], "--interval"),
        (["top", "--interval", "inf"], "--interval"),
    ],
)
def test_what_cannot_be_watched_is_named(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_folder_without_a_store_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", str(tmp_path)]) == 2
    assert "there is no store in" in capsys.readouterr().err
