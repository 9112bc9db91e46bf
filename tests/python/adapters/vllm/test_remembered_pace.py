"""What an engine's rate was is known to its next run, and to no other engine."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import vllm_engine  # noqa: F401
from half_setup import BLOCK_TOKENS, Request, attach_tensors, make_engine

from kvtier.adapters.vllm.engine_pace import SAMPLES_MAX, EnginePace
from kvtier.adapters.vllm.remembered_pace import FILE_NAME, RememberedPace

ENGINE = {"model": "m", "dtype": "bfloat16", "layout": "one device", "fingerprint": "f"}
RATE = 4000.0
NUM_BLOCKS = 16


class Pace:
    """An engine that computes `rate` tokens a second, one step after the other."""

    def __init__(self, remembered: float | None = None) -> None:
        self.now_s = 100.0
        self.pace = EnginePace(
            steps_ahead=1, clock_s=lambda: self.now_s, remembered_tokens_per_s=remembered
        )

    def compute(self, num_steps: int, rate: float = RATE) -> EnginePace:
        for _ in range(num_steps):
            self.pace.admit("a", 400)
            self.pace.note_step({"a": 400})
            self.now_s += 400 / rate
        self.pace.note_step({"a": 1})
        return self.pace


def wait_for_writers() -> None:
    for it in threading.enumerate():
        if it.name == "kvtier-pace":
            it.join(5.0)


def test_the_next_run_knows_the_rate_of_the_last_one(tmp_path: Path) -> None:
    first = RememberedPace(tmp_path, ENGINE)
    assert first.read() is None
    first.close(Pace().compute(3))
    assert RememberedPace(tmp_path, ENGINE).read() == pytest.approx(RATE)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_engine_that_is_killed_has_kept_it(tmp_path: Path) -> None:
    played, remembered = Pace(), RememberedPace(tmp_path, ENGINE)
    for num_steps in range(1, SAMPLES_MAX + 3):
        remembered.note(played.compute(1))
        wait_for_writers()
        assert RememberedPace(tmp_path, ENGINE).read() is not None, num_steps
    assert RememberedPace(tmp_path, ENGINE).read() == pytest.approx(RATE)


def test_one_slow_step_does_not_replace_what_a_run_came_to(tmp_path: Path) -> None:
    RememberedPace(tmp_path, ENGINE).close(Pace().compute(30))
    second = RememberedPace(tmp_path, ENGINE)
    played = Pace(second.read())
    # The first prompt of a run pays for much that is done once.
    second.note(played.compute(1, rate=RATE / 100))
    wait_for_writers()
    assert played.pace.tokens_per_s == pytest.approx(RATE)
    assert RememberedPace(tmp_path, ENGINE).read() == pytest.approx(RATE)
    # What is really another rate is known soon, and kept.
    for _ in range(SAMPLES_MAX):
        second.note(played.compute(1, rate=3 * RATE))
        wait_for_writers()
    assert RememberedPace(tmp_path, ENGINE).read() == pytest.approx(3 * RATE)


def test_no_thread_to_be_had_costs_the_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    remembered = RememberedPace(tmp_path, ENGINE)
    pace = Pace().compute(3)
    remembered.note(pace)
    remembered.close(pace)
    assert remembered.read() is None


def test_a_run_that_computed_nothing_keeps_what_was_known(tmp_path: Path) -> None:
    RememberedPace(tmp_path, ENGINE).close(Pace().compute(3))
    second = RememberedPace(tmp_path, ENGINE)
    second.close(EnginePace(steps_ahead=1, clock_s=lambda: 0.0, remembered_tokens_per_s=RATE))
    assert RememberedPace(tmp_path, ENGINE).read() == pytest.approx(RATE)


@pytest.mark.parametrize(
    "changed", [{"model": "n"}, {"layout": "another device"}, {"num_ranks": 2}]
)
def test_another_engine_does_not_take_it(tmp_path: Path, changed: dict[str, Any]) -> None:
    RememberedPace(tmp_path, ENGINE).close(Pace().compute(3))
    assert RememberedPace(tmp_path, {**ENGINE, **changed}).read() is None
    # Weights that were trained further are as fast.
    assert RememberedPace(tmp_path, {**ENGINE, "fingerprint": "g"}).read() is not None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1, 2]",
        b"7",
        b'{"tokens_per_s": 5}',
        b'{"engine": "ENGINE"}',
        b'{"engine": "ENGINE", "tokens_per_s": "fast"}',
        b'{"engine": "ENGINE", "tokens_per_s": null}',
        b'{"engine": "ENGINE", "tokens_per_s": 0}',
        b'{"engine": "ENGINE", "tokens_per_s": -1}',
        b'{"engine": "ENGINE", "tokens_per_s": NaN}',
        b'{"engine": "ENGINE", "tokens_per_s": Infinity}',
        b'{"engine": "ENGINE", "tokens_per_s": 5, "more": "' + b"x" * 5000 + b'"}',
        b'{"engine": "ENGINE", "tokens_per_s": 1' + b"0" * 400 + b"}",
        b"[" * 4000,
        b"\xff\xfe\x00",
    ],
)
def test_a_damaged_file_is_as_none(tmp_path: Path, text: bytes) -> None:
    remembered = RememberedPace(tmp_path, ENGINE)
    remembered.close(Pace().compute(3))
    name = json.loads((tmp_path / FILE_NAME).read_text())["engine"].encode()
    (tmp_path / FILE_NAME).write_bytes(text.replace(b"ENGINE", name))
    assert remembered.read() is None


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    remembered = RememberedPace(tmp_path / "missing", ENGINE)
    remembered.close(Pace().compute(3))
    assert remembered.read() is None
    nowhere = RememberedPace(None, ENGINE)
    nowhere.close(Pace().compute(3))
    assert nowhere.read() is None


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "store"
    folder.mkdir()
    for name in (FILE_NAME, f"{FILE_NAME}.new"):
        os.symlink(victim, folder / name)
    RememberedPace(folder, ENGINE).close(Pace().compute(3))
    assert victim.read_text() == "precious"
    assert RememberedPace(folder, ENGINE).read() == pytest.approx(RATE)


def visit(manager: Any, request: Request) -> int:
    """Returns how many blocks of a request would be loaded."""
    manager.on_new_request(request.context)
    manager.resolve(request, 0)
    hits = manager.count_hits(request.offload_keys(), request.context)
    return int(hits or 0)


def run_engine(folder: Path, name: str, *, is_first: bool) -> int:
    """Runs an engine that is slow, beside a disk that is not fast. Returns blocks to load."""
    from kvtier.adapters.vllm.manager import KvtierManager

    extra = {"kv_device": "disk", "disk_path": str(folder), "disk_bytes": "64MiB"}
    engine = make_engine(**extra)
    attach_tensors(engine)
    now_s = 100.0
    manager = KvtierManager(engine, clock_s=lambda: now_s)
    namespace = engine.groups[0].namespace
    # The load takes longer than what is loaded at once while nothing is known.
    manager._limiter._read_bytes_per_s = NUM_BLOCKS * namespace.block_bytes / 1.5
    manager._limiter._rate_until_s = float("inf")
    num_loaded = visit(manager, Request(name, num_blocks=NUM_BLOCKS))
    if is_first:
        keys = manager._blocks[name].chains[0].keys(namespace, 0, NUM_BLOCKS)
        namespace.put(keys, [bytes([it]) * namespace.block_bytes for it in range(NUM_BLOCKS)])
        engine.store.flush(timeout_s=30.0)
        # Sixteen blocks take it longer than that load.
        manager._pace.admit("other", 4096)
        manager.note_step({"other": 4096})
        now_s += 4096 / (NUM_BLOCKS * BLOCK_TOKENS) * 3.0
        manager.note_step({"other": 1})
        assert visit(manager, Request("again", num_blocks=NUM_BLOCKS)) == NUM_BLOCKS
    manager.shutdown()
    engine.close()
    return num_loaded


@pytest.mark.parametrize("is_known", [True, False])
def test_a_long_hit_is_loaded_right_after_a_restart(tmp_path: Path, is_known: bool) -> None:
    """The first visit of a new run has nothing measured: it must not be computed for that."""
    assert run_engine(tmp_path, "a", is_first=True) == 0
    if not is_known:
        (tmp_path / FILE_NAME).unlink()
    assert run_engine(tmp_path, "a", is_first=False) == (NUM_BLOCKS if is_known else 0)
