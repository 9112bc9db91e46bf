"""`kvtier bench disk` on little data: what it must say, refuse, and leave behind. One at a time."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from kvtier.bench.cli import add_bench_parser
from kvtier.bench.disk_pairs import DiskPairs
from kvtier.bench.simulated_disk import PaperDisk, parse_paper_disk
from kvtier.bench.timed_bytes import TimedBytes
from kvtier.errors import ConfigError

Bench = Callable[..., tuple[int, str, str]]
SMALL = ("--block-bytes", "64KiB", "--bytes", "2MiB", "--seconds", "0")


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Bench:
    def call(*words: object) -> tuple[int, str, str]:
        parser = argparse.ArgumentParser()
        add_bench_parser(parser.add_subparsers())
        arguments = parser.parse_args(["bench", "disk", *map(str, words)])
        status = arguments.run(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_the_report_has_its_fields_and_the_bytes_of_the_disk_tier(
    bench: Bench, disk_folder: Path
) -> None:
    """Report L2: bytes are the disk tier's own, and named so."""
    status, out, _ = bench("--path", disk_folder / "store", *SMALL, "--json")
    report = json.loads(out)
    assert status == 0
    assert set(report) >= {"get", "put", "raw", "medium"}
    assert set(report["get"]) >= {"gb_per_s", "ratio", "cpu_s_per_gb", "bytes_read", "cpu_ratio"}
    assert set(report["put"]) >= {"gb_per_s", "ratio", "cpu_s_per_gb", "bytes_written"}
    assert set(report["raw"]) >= {"read_gb_per_s", "write_gb_per_s", "bytes_read", "bytes_written"}
    assert report["num_pairs"] == 7
    data_bytes = 7 * (2 << 20)
    assert report["get"]["bytes_read"] >= report["get"]["bytes_got"] == data_bytes
    assert report["put"]["bytes_written"] >= data_bytes
    assert report["put"]["overwriting"]["bytes_written"] >= data_bytes
    assert report["raw"]["bytes_read"] == data_bytes
    assert report["raw"]["bytes_written"] == 2 * data_bytes
    for side in (report["get"], report["put"], report["put"]["overwriting"]):
        assert 0 < side["ratio_min"] <= side["ratio"] <= side["ratio_max"]
    assert report["get"]["cpu_ratio"] > 0
    # What bare loops reach without a store, which no disk faster than the memory can hide.
    assert report["get"]["bare_ratio"] > 0
    assert report["put"]["overwriting"]["bare_ratio"] > 0
    left = {path.name.split(".")[0] for path in (disk_folder / "store").iterdir()}
    assert left == {"kvtier"}


def test_a_working_set_in_memory_is_no_disk_traffic(bench: Bench, disk_folder: Path) -> None:
    """Report L4: a run that reads nothing from disk has measured nothing of it."""
    words = ("--path", disk_folder / "store", *SMALL, "--host-bytes", "64MiB")
    status, out, err = bench(*words, "--json")
    report = json.loads(out)
    assert status == 1
    assert report["get"]["bytes_read"] == 0
    assert report["get"]["gb_per_s"] is None
    assert report["get"]["ratio"] is None
    assert report["verdict"] == "no disk traffic"
    assert "no disk traffic" in err


def test_a_slow_disk_on_paper_is_as_slow_as_it_says(bench: Bench, disk_folder: Path) -> None:
    """Report L3: the time is that of the completion, not of the start."""
    words = ("--path", disk_folder / "store", "--block-bytes", "64KiB", "--bytes", "1MiB")
    disk = "rate=20MB/s,latency=1ms,depth=1"
    status, out, _ = bench(*words, "--seconds", "0", "--simulate", disk, "--json")
    report = json.loads(out)
    assert status == 0
    assert report["medium"] == "simulated"
    on_paper = 65536 / (65536 / 20e6 + 1e-3) / 1e9
    assert report["raw"]["read_gb_per_s"] == pytest.approx(on_paper)
    assert 0 < report["get"]["gb_per_s"] <= on_paper * 1.001
    assert 0 < report["put"]["gb_per_s"] <= on_paper * 1.001


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no tmpfs at /dev/shm")
def test_a_tmpfs_is_called_memory_never_ssd(bench: Bench, shared_memory_folder: Path) -> None:
    status, out, _ = bench("--path", shared_memory_folder / "store", *SMALL, "--json")
    assert status == 0
    assert json.loads(out)["medium"] == "memory"


@pytest.fixture
def shared_memory_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="kvtier-test-") as folder:
        yield Path(folder)


def test_a_folder_with_blocks_is_refused_and_keeps_them(bench: Bench, disk_folder: Path) -> None:
    import kvtier

    folder = disk_folder / "store"
    with kvtier.open(folder, host_bytes=0, disk_bytes="64MiB") as store:
        namespace = store.namespace(model="m", block_bytes=4096, fingerprint="f")
        keys = namespace.keys(np.arange(160))
        assert namespace.put(keys, np.ones((10, 4096), np.uint8)).num_accepted == 10
        store.flush()
    with pytest.raises(ConfigError, match="holds 10 blocks"):
        bench("--path", folder, *SMALL)
    with kvtier.open(folder, host_bytes=0, disk_bytes="64MiB") as store:
        namespace = store.namespace(model="m", block_bytes=4096, fingerprint="f")
        assert namespace.lookup(keys).num_blocks == 10


def test_wrong_bytes_fail_the_run(
    bench: Bench, disk_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A canary: a get that delivers another block's bytes must not pass for a fast one."""
    get_all = DiskPairs.get_all

    def get_wrong(pairs: DiskPairs) -> TimedBytes:
        pairs.source.data[:] = pairs.source.data[::-1].copy()
        pairs.store.clear()
        pairs.source.put_all(pairs.store)
        pairs.store.flush()
        return get_all(pairs)

    monkeypatch.setattr(DiskPairs, "get_all", get_wrong)
    status, out, err = bench("--path", disk_folder / "store", *SMALL, "--json")
    assert status == 1
    assert json.loads(out)["verdict"] == "wrong bytes"
    assert "wrong bytes" in err


@pytest.mark.parametrize(
    "text", ["", "rate", "speed=1", "rate=1MB,rate=2MB", "latency=1ms", "rate=1MB,latency=x",
             "rate=1MB,depth=-1", "rate=1MB,latency=1.1.1s"],
)  # fmt: skip
def test_a_disk_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="simulate"):
        parse_paper_disk(text)


def test_a_disk_on_paper_has_the_rate_that_its_numbers_give() -> None:
    disk = parse_paper_disk("rate=50MB/s,write_rate=10MB/s,latency=250us,depth=4")
    assert disk == PaperDisk(
        read_bytes_per_s=50_000_000, write_bytes_per_s=10_000_000, latency_s=pytest.approx(250e-6),
        queue_depth_max=4,
    )  # fmt: skip
    # Large ops in parallel are bound by the rate, small ones by latency.
    assert disk.gb_per_s(is_write=False, op_bytes=1 << 20, depth=8) == pytest.approx(0.05)
    fast = PaperDisk(read_bytes_per_s=10**10, write_bytes_per_s=10**10, latency_s=1e-3)
    assert fast.gb_per_s(is_write=False, op_bytes=4096, depth=2) == pytest.approx(
        2 * 4096 / (4096e-10 + 1e-3) / 1e9
    )


def test_sizes_and_times_that_make_no_sense_are_refused(bench: Bench, disk_folder: Path) -> None:
    for words in (("--block-bytes", "0"), ("--block-bytes", "many")):
        with pytest.raises(ConfigError):
            bench("--path", disk_folder / "store", *words)
    with pytest.raises(SystemExit) as exit_info:
        bench("--path", disk_folder / "store", "--seconds", "-1")
    assert exit_info.value.code == 2
    assert not os.path.exists(disk_folder / "store")
