"""`kvtier bench copy` on the host's device and little data, and what it is made of. Rates are not
judged here: tests share the machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from kvtier import _core
from kvtier.bench import copy_command
from kvtier.bench.block_source import BenchmarkError
from kvtier.bench.cli import add_bench_parser
from kvtier.bench.copy_case import BlockShape, CopyCase, Moved
from kvtier.bench.copy_command import find_commit, find_driver_version
from kvtier.bench.copy_figures import CopyRun, take_turns
from kvtier.bench.copy_report import CopyReport, CopyRow, print_copy_report
from kvtier.bench.copy_rig import DIRECTIONS, LOAD, SAVE, CopyRig, open_rig
from kvtier.errors import ConfigError, UnsupportedError, UsageError

MEMORY_BYTES = 2 << 20
SHAPE = BlockShape(fragment_bytes=1536, num_fragments=5, num_blocks=40)


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*words: object) -> tuple[int, str, str]:
        parser = argparse.ArgumentParser()
        add_bench_parser(parser.add_subparsers())
        arguments = parser.parse_args(["bench", "copy", *map(str, words)])
        status = arguments.run(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def rig() -> Iterator[CopyRig]:
    with open_rig(_core.TransferDevice.host(), MEMORY_BYTES) as opened:
        yield opened


def test_the_host_gives_every_part_that_it_can(
    bench: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    output = tmp_path / "copy.json"
    words = ["--device", "host", "--quick", "--bytes", "1MiB", "--json", "--output", output]
    status, out, err = bench(*words)
    report = json.loads(out)
    assert status == 0
    assert json.loads(output.read_text()) == report
    assert (report["wrong_bytes"], report["good"], report["figures"]) == (0, True, [])
    assert report["device"]["kind"] == "host"
    assert report["driver"] is None
    assert report["version"]
    assert err.startswith("no GPU (as asked): ")
    assert report["first_line"] in err
    rows = report["rows"]
    assert {row["what"] for row in rows} == {"sweep", "both", "small", "submit"}
    sweep = {(it["fragment_bytes"], it["direction"], it["method"]) for it in rows[:12]}
    assert sweep == {
        (fragment_bytes, direction, method)
        for fragment_bytes in (4096, 32768)
        for direction in ("save", "load")
        for method in ("copy_engine", "zero_copy", "auto")
    }
    for row in rows:
        if row["what"] != "submit":
            assert row["gb_per_s"] > 0
            assert row["limit_gb_per_s"] > 0
            assert row["ratio_min"] <= row["ratio"] <= row["ratio_max"]
            assert row["num_turns"] >= 5
    small = [row for row in rows if row["what"] == "small"]
    assert all(row["us"] > 0 and row["one_copy_us"] > 0 for row in small)
    submit = [row for row in rows if row["what"] == "submit"]
    assert all(row["gb_per_s"] is row["limit_gb_per_s"] is row["ratio"] is None for row in submit)
    assert all(0 < row["caller_us"] <= row["caller_max_us"] for row in submit)
    assert {row["used"] for row in rows if row["method"] == "auto"} == {"zero_copy", None}
    text = " ".join(report["notes"])
    for left_out in ("staged", "page-locking", "harm", "1048576 bytes"):
        assert left_out in text


def test_without_a_gpu_the_first_line_says_why(bench: Callable[..., tuple[int, str, str]]) -> None:
    try:
        _core.TransferDevice.cuda(0)
    except UnsupportedError as error:
        reason = str(error)
    else:
        pytest.skip("this machine has a GPU")
    status, out, _ = bench("--only", "small", "--bytes", "1MiB")
    assert status == 0
    assert out.startswith(f"no GPU ({reason}): ")
    assert "one block of 28 x 32 KiB" in out
    with pytest.raises(UnsupportedError, match="CUDA"):
        bench("--device", "cuda:0", "--only", "small")


def test_what_cannot_be_measured_is_refused_at_once(
    bench: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"only: unknown part 'speed'; there are sweep, both"):
        bench("--only", "speed")
    with pytest.raises(ConfigError, match="bytes: 4096 measures nothing"):
        bench("--bytes", "4KiB")
    with pytest.raises(ConfigError, match="bytes"):
        bench("--bytes", "many")
    with pytest.raises(UsageError, match="cuda:N"):
        bench("--device", "gpu")
    with pytest.raises(ConfigError, match="plot: there is no folder"):
        bench("--plot", tmp_path / "missing" / "copy.png")
    with pytest.raises(ConfigError, match="output: there is no folder"):
        bench("--output", tmp_path / "missing" / "copy.json")


def test_the_sweep_is_drawn(bench: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "copy.png"
    words = ["--device", "host", "--quick", "--bytes", "256KiB", "--only", "sweep"]
    assert bench(*words, "--plot", picture)[0] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_wrong_bytes_fail_the_run(
    bench: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    move = CopyCase.move

    def move_wrongly(case: CopyCase, direction: str, method: str) -> Moved:
        moved = move(case, direction, method)
        if direction == SAVE:
            case._rig.host_memory(SAVE)[12345] ^= 1
        return moved

    monkeypatch.setattr(CopyCase, "move", move_wrongly)
    status, out, err = bench("--device", "host", "--only", "small", "--bytes", "1MiB", "--json")
    assert status == 1
    assert json.loads(out)["wrong_bytes"] == 3  # One for each method that saves.
    assert "wrong bytes: 3" in err


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_each_byte_of_a_case_is_compared(rig: CopyRig, direction: str) -> None:
    engine = rig.make_engine()
    with CopyCase(rig, engine, SHAPE) as case:
        assert case.count_wrong_bytes(direction, "auto") == 0
        assert len(set(case.block_ids.tolist())) == SHAPE.num_blocks
        # Another block's bytes in the place of one are noticed: nearly all of them differ.
        case.block_ids[:2] = case.block_ids[1::-1].copy()
        before = case.count_wrong_bytes(direction, "auto")
        assert before == 0
        moved, case.move = case.move, lambda *words: None  # type: ignore[method-assign, assignment, return-value]
        assert case.count_wrong_bytes(direction, "auto") > 0.9 * SHAPE.num_bytes
        case.move = moved  # type: ignore[method-assign]


def test_bare_copies_move_what_they_say(rig: CopyRig) -> None:
    assert rig.copy_s(SAVE, 4096) > 0
    assert (rig.host_memory(SAVE)[:4096] == rig.host_memory(LOAD)[:4096]).all()
    assert not rig.host_memory(SAVE)[4096:].any()
    assert rig.copy_both_s(8192) > 0
    assert (rig.host_memory(SAVE)[:8192] == rig.host_memory(LOAD)[:8192]).all()
    # Data without a pattern.
    assert len(np.unique(rig.host_memory(LOAD).view(np.uint64))) > MEMORY_BYTES // 8 - 10


def test_a_transfer_that_fails_fails_the_measurement(
    rig: CopyRig, bench: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = rig.make_engine()
    with CopyCase(rig, engine, SHAPE) as case:
        case._checksums = case._checksums ^ np.uint64(1)
        with pytest.raises(BenchmarkError, match="a load failed: "):
            case.move(LOAD, "auto")

    def fail(run: CopyRun) -> Iterator[CopyRow]:
        raise BenchmarkError("a save failed: as asked")
        yield

    monkeypatch.setitem(copy_command.PARTS, "both", fail)
    status, _, err = bench("--device", "host", "--only", "both", "--bytes", "64KiB")
    assert status == 1
    assert "kvtier bench copy: a save failed: as asked" in err


class LateEnd:
    """Stands in for an engine or a device whose transfers end 100 ms after they began."""

    def __init__(self, inner: object) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def wait(self, job_id: int, timeout_s: float) -> bool:
        time.sleep(0.1)
        return self._inner.wait(job_id, timeout_s)  # type: ignore[attr-defined, no-any-return]

    def wait_event(self, event_id: int, timeout_s: float) -> object:
        time.sleep(0.1)
        return self._inner.wait_event(event_id, timeout_s)  # type: ignore[attr-defined]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_times_are_those_of_the_completion_l3(rig: CopyRig, direction: str) -> None:
    """Report L3: 325 GB/s because only the start was timed."""
    with CopyCase(rig, LateEnd(rig.make_engine()), SHAPE) as case:  # type: ignore[arg-type]
        moved = case.move(direction, "auto")
        assert min(moved.seconds, moved.waited_s) >= 0.1
        assert case.move_both_s("auto") >= 0.1
    rig.device = LateEnd(rig.device)  # type: ignore[assignment]
    assert rig.copy_s(direction, 4096) >= 0.1
    assert rig.copy_both_s(4096) >= 0.1


def test_turns_alternate_and_the_first_only_warms_up() -> None:
    order: list[str] = []

    def call(name: str, seconds: float) -> Callable[[], float]:
        def run() -> float:
            order.append(name)
            return seconds

        return run

    turns = take_turns(call("case", 2.0), call("limit", 1.0), num_turns=3)
    assert order == ["case", "limit", "limit", "case", "case", "limit", "limit", "case"]
    row = turns.row(CopyRow(what="sweep"), case_bytes=4 * 10**9, limit_bytes=10**9)
    assert (row.gb_per_s, row.limit_gb_per_s, row.ratio, row.num_turns) == (2.0, 1.0, 2.0, 3)


def report_of(*rows: CopyRow, is_judged: bool = True, wrong_bytes: int = 0) -> CopyReport:
    return CopyReport(
        first_line="GPU: one", device={"name": "one"}, driver="1.2", version="0", commit=None,
        is_on_gpu=True, is_judged=is_judged, rows=rows, notes=["as it was"],
        wrong_bytes=wrong_bytes,
    )  # fmt: skip


def sweep_row(method: str, ratio: float, fragment_kib: int = 32) -> CopyRow:
    return CopyRow(
        what="sweep", direction="save", method=method, used="staged", num_fragments=28,
        fragment_bytes=fragment_kib << 10, gb_per_s=50.0, ratio=ratio,
    )  # fmt: skip


def harm_row(slowdown: float) -> CopyRow:
    return CopyRow(what="harm", extra={"slowdown_beyond_copies": slowdown})


def test_what_is_judged_on_a_gpu() -> None:
    assert report_of(sweep_row("auto", 0.98), harm_row(0.05)).is_good
    assert not report_of(sweep_row("auto", 0.96)).is_good
    assert report_of(sweep_row("auto", 0.90, fragment_kib=8)).is_good  # Too small for a bound.
    assert not report_of(harm_row(0.08)).is_good
    assert report_of(sweep_row("auto", 0.96), harm_row(0.08), is_judged=False).is_good
    assert not report_of(is_judged=False, wrong_bytes=1).is_good
    rivals = [sweep_row("auto", 0.90, fragment_kib=8), sweep_row("staged", 0.95, fragment_kib=8)]
    assert not report_of(*rivals).is_good
    assert report_of(rivals[0], sweep_row("staged", 0.94, fragment_kib=8)).is_good
    other = sweep_row("staged", 0.99, fragment_kib=4)
    assert report_of(rivals[0], other).is_good


def test_the_table_names_units(capsys: pytest.CaptureFixture[str]) -> None:
    small = CopyRow(
        what="small", direction="load", method="auto", used="staged", fragment_bytes=32768,
        num_fragments=28, num_blocks=1, gb_per_s=26.5, limit_gb_per_s=30.0, ratio=0.883,
        extra={"us": 33.04, "one_copy_us": 29.0},
    )  # fmt: skip
    lock = CopyRow(what="page_lock", extra={"mapping": "private", "lock_gib_per_s": 11.7})
    print_copy_report(report_of(small, lock, harm_row(0.058)))
    out = capsys.readouterr().out
    for text in (
        "one block of 28 x 32 KiB", "auto (staged)", "88.3%", "33.0 µs; one copy 29.0 µs",
        "private mapping; lock 11.7 GiB/s", "beyond copies +5.8%", "note: as it was",
    ):  # fmt: skip
        assert text in out


def test_driver_and_commit_are_told_where_they_are_known(tmp_path: Path) -> None:
    file = tmp_path / "version"
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module  580.159.04  Release Build\n")
    assert find_driver_version(file) == "580.159.04"
    assert find_driver_version(tmp_path / "missing") is None
    assert find_commit(tmp_path) is None
    (tmp_path / ".git").write_text("gitdir: nowhere\n")
    assert find_commit(tmp_path) is None


def test_memory_of_a_transfer_that_does_not_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class StuckEngine:
        """Answers as one whose job is under way for ever."""

        def __init__(self, *words: object) -> None: ...
        def add_page_locked_memory(self, address: int, length_bytes: int) -> None: ...
        def close(self, timeout_s: float) -> bool:
            return False

    freed: list[int] = []

    class Device:
        """The host's, noting what is given back."""

        def __init__(self) -> None:
            self._device = _core.TransferDevice.host()

        def __getattr__(self, name: str) -> object:
            if name in ("deallocate", "deallocate_page_locked"):
                return freed.append
            found: object = getattr(self._device, name)
            return found

    with open_rig(Device(), 1 << 16) as rig:  # type: ignore[arg-type]
        pass
    assert len(freed) == 4
    freed.clear()
    monkeypatch.setattr(_core, "TransferEngine", StuckEngine)
    with open_rig(Device(), 1 << 16) as rig:  # type: ignore[arg-type]
        rig.make_engine()
    assert freed == []
