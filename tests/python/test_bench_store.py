"""`kvtier bench store` on little data, and what its parts are made of. Figures are not judged here:
tests share the machine.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

import kvtier
from kvtier.bench import interference_figures, store_command
from kvtier.bench.block_source import BenchmarkError, BlockSource, bench_namespace
from kvtier.bench.cli import add_bench_parser
from kvtier.bench.figure import Figure
from kvtier.bench.host_figures import run_in_threads
from kvtier.bench.pairs import PairedTimes, time_pairs
from kvtier.errors import ConfigError


def run_bench(*words: object) -> int:
    parser = argparse.ArgumentParser()
    add_bench_parser(parser.add_subparsers())
    arguments = parser.parse_args(["bench", "store", *map(str, words)])
    status: int = arguments.run(arguments)
    return status


def test_the_host_part_shows_each_figure_beside_its_bound(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = run_bench("--quick", "--only", "host", "--json")
    figures = json.loads(capsys.readouterr().out)
    bounds = {name: figure["at_least"] for name, figure in figures.items()}
    assert bounds == {
        "host put / numpy.copyto, checksum on": 0.70,
        "host get / numpy.copyto, checksum on": 0.90,
        "host put / numpy.copyto, checksum off": 0.90,
        "host get / numpy.copyto, checksum off": 0.90,
    }
    assert all(figure["value"] > 0 for figure in figures.values())
    assert status == (0 if all(figure["good"] for figure in figures.values()) else 1)


def test_engines_are_compared_or_the_reason_stands_there(
    disk_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[Figure] = []

    def measure(folder: Path, is_quick: bool) -> list[Figure]:
        monkeypatch.setattr(interference_figures, "NUM_PAIRS", 1)
        measured.append(interference_figures._compare_engines(folder, 1 << 16, 8, 0.6))
        return measured

    monkeypatch.setitem(store_command.DISK_PARTS, "engines", measure)
    run_bench("--quick", "--only", "engines", "--path", disk_folder, "--json")
    figures = json.loads(capsys.readouterr().out)
    (figure,) = figures.values()
    try:
        kvtier.open(disk_folder / "s", host_bytes=0, disk_bytes="64MiB", io="uring").close()
    except ConfigError:
        assert figure["value"] is None
        assert "no ring" in figure["note"]
        assert figure["good"]
    else:
        assert figure["value"] > 0
    assert [path.name for path in disk_folder.iterdir()] in ([], ["s"])


def test_unknown_parts_and_a_missing_path_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown part 'speed'"):
        run_bench("--only", "speed")
    with pytest.raises(ConfigError, match="path"):
        run_bench("--only", "disk")


def test_a_figure_that_misses_its_bound_or_has_none() -> None:
    assert Figure(name="f", value=0.5, at_least=0.4).is_good
    assert not Figure(name="f", value=0.3, at_least=0.4).is_good
    assert not Figure(name="f", value=1.3, at_least=0.4, at_most=1.2).is_good
    assert Figure(name="f", value=None, at_least=0.4, note="no disk").is_good


def test_a_part_that_cannot_measure_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path, is_quick: bool) -> list[Figure]:
        raise BenchmarkError("no disk traffic")

    monkeypatch.setitem(store_command.HOST_PARTS, "host", fail)
    assert run_bench("--only", "host", "--json") == 1
    assert "host: no disk traffic" in capsys.readouterr().err


def test_pairs_alternate_and_prepare_only_ours() -> None:
    order: list[str] = []
    times = time_pairs(
        lambda: order.append("ours"), lambda: order.append("reference"),
        before=lambda: order.append("before"), num_pairs=3,
    )  # fmt: skip
    assert len(times.ours_s) == len(times.reference_s) == 3
    ours_first, reference_first = ["before", "ours", "reference"], ["reference", "before", "ours"]
    assert order == [*ours_first, *reference_first, *ours_first, *reference_first]
    assert PairedTimes(ours_s=[1.0, 2.0, 4.0], reference_s=[1.0, 1.0, 1.0]).rate_ratio == 0.5


def test_a_thread_that_fails_fails_the_measurement() -> None:
    def fail() -> None:
        raise BenchmarkError("as asked")

    with pytest.raises(BenchmarkError, match="as asked"):
        run_in_threads([fail, lambda: None])


def test_a_source_notices_a_wrong_byte_and_a_declined_put() -> None:
    with kvtier.open(None, host_bytes="1MiB") as store:
        source = BlockSource(bench_namespace(store, 64 << 10), 4)
        source.put_all(store)
        out = np.zeros_like(source.data)
        assert source.namespace.get(source.keys, out).num_blocks == 4
        assert source.check(0, out) == 0
        out[2, 77] ^= 1
        assert source.check(0, out) == 1
        assert source.check(1, out[1:2]) == 0
        # One chain cannot be evicted above what is still to come.
        with pytest.raises(BenchmarkError, match="declined"):
            BlockSource(bench_namespace(store, 64 << 10, salt="big"), 40).put_all(store)
