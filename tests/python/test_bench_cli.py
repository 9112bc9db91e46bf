"""`kvtier bench trace` from end to end on a small trace. One store at a time."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvtier.bench.cli import add_bench_parser
from kvtier.bench.trace import TraceError
from kvtier.errors import ConfigError

NUM_CHAINS = 24
CHAIN_BLOCKS = 8
FIELDS = {
    "hit_rate", "requests", "blocks", "wrong_bytes", "cpu_s_per_gb", "written_per_offered",
    "tiers", "raw", "medium",
}  # fmt: skip
TIER_FIELDS = {"hits", "gb_per_s", "p50_us", "p99_us", "bytes_read", "bytes_written"}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Chains that come, come again at once (host), and come again much later (disk)."""
    chains = [[1000 * c + b for b in range(CHAIN_BLOCKS)] for c in range(NUM_CHAINS)]
    requests = [chain for chain in chains for _ in range(2)] + chains
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps({"hash_ids": ids}) + "\n" for ids in requests))
    return path


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*words: object) -> tuple[int, str, str]:
        parser = argparse.ArgumentParser()
        add_bench_parser(parser.add_subparsers())
        arguments = parser.parse_args(["bench", *map(str, words)])
        status = arguments.run(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def common(trace: Path, folder: Path, host_bytes: str) -> list[object]:
    sizes = ["--host-bytes", host_bytes, "--disk-bytes", "64MiB", "--block-bytes", "64KiB"]
    return ["trace", "--trace", trace, "--path", folder, *sizes]


def test_help_loads_no_array_library() -> None:
    program = (
        "import sys, kvtier.bench.cli; "
        "print([name for name in ('numpy', 'rich', 'matplotlib') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.stdout == "[]\n", answer.stderr


def test_both_tiers_are_used_and_every_byte_is_right(
    bench: Callable[..., tuple[int, str, str]], trace: Path, tmp_path: Path
) -> None:
    status, out, _ = bench(*common(trace, tmp_path / "store", "4MiB"), "--json")
    report = json.loads(out)
    assert set(report) >= FIELDS
    assert set(report["tiers"]) == {"host", "disk"}
    assert status == 0
    assert report["requests"] == 3 * NUM_CHAINS
    assert report["blocks"] == 3 * NUM_CHAINS * CHAIN_BLOCKS
    assert report["wrong_bytes"] == 0
    assert report["hit_rate"] == pytest.approx(2 / 3)
    for tier in report["tiers"].values():
        assert set(tier) == TIER_FIELDS
        assert tier["hits"] > 0
        assert tier["gb_per_s"] > 0
        assert 0 < tier["p50_us"] <= tier["p99_us"]
    num_hits = sum(tier["hits"] for tier in report["tiers"].values())
    assert num_hits == 2 * NUM_CHAINS * CHAIN_BLOCKS
    assert report["tiers"]["disk"]["bytes_read"] >= report["tiers"]["disk"]["hits"] * 65536
    assert 1.0 <= report["written_per_offered"] <= 1.1
    assert report["raw"]["read_gb_per_s"] > 0
    assert report["raw"]["write_gb_per_s"] > 0


def test_a_second_run_in_the_same_directory_starts_without_hits(
    bench: Callable[..., tuple[int, str, str]], trace: Path, tmp_path: Path
) -> None:
    words = [*common(trace, tmp_path / "store", "4MiB"), "--json"]
    first = json.loads(bench(*words)[1])
    _, out, err = bench(*words)
    assert json.loads(out)["hit_rate"] == first["hit_rate"]
    assert "already holds" in err


def test_a_working_set_that_fits_memory_is_no_disk_traffic(
    bench: Callable[..., tuple[int, str, str]], trace: Path, tmp_path: Path
) -> None:
    status, out, err = bench(*common(trace, tmp_path / "store", "64MiB"), "--json")
    report = json.loads(out)
    assert status == 1
    assert report["tiers"]["disk"]["bytes_read"] == 0
    assert report["tiers"]["disk"]["gb_per_s"] is None
    assert report["verdict"] == "no disk traffic"
    assert "no disk traffic" in err
    status, out, _ = bench(*common(trace, tmp_path / "store2", "64MiB"))
    assert status == 1
    assert "no disk traffic" in out


def test_the_first_requests_only(
    bench: Callable[..., tuple[int, str, str]], trace: Path, tmp_path: Path
) -> None:
    _, out, _ = bench(*common(trace, tmp_path / "store", "4MiB"), "--json", "--requests", 2)
    report = json.loads(out)
    assert report["requests"] == 2
    assert report["hit_rate"] == pytest.approx(0.5)


def test_without_a_disk_tier_there_is_no_disk_to_judge(
    bench: Callable[..., tuple[int, str, str]], trace: Path
) -> None:
    sizes = ["--host-bytes", "64MiB", "--block-bytes", 4096]
    status, out, _ = bench("trace", "--trace", trace, *sizes, "--json")
    report = json.loads(out)
    assert status == 0
    assert report["medium"] is None
    assert report["raw"] == {"read_gb_per_s": None, "write_gb_per_s": None}
    assert report["tiers"]["host"]["hits"] == 2 * NUM_CHAINS * CHAIN_BLOCKS


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no tmpfs at /dev/shm")
def test_a_tmpfs_is_called_memory(
    bench: Callable[..., tuple[int, str, str]], trace: Path, shared_memory_folder: Path
) -> None:
    status, out, _ = bench(*common(trace, shared_memory_folder, "4MiB"), "--json")
    assert status == 0
    assert json.loads(out)["medium"] == "memory"


@pytest.fixture
def shared_memory_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="kvtier-test-") as folder:
        yield Path(folder)


def test_bad_input_is_refused_before_anything_is_written(
    bench: Callable[..., tuple[int, str, str]], trace: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    with pytest.raises(TraceError):
        bench(*common(tmp_path / "missing", folder, "4MiB"))
    with pytest.raises(ConfigError, match="host"):
        bench(*common(trace, folder, "4 parsecs"))
    with pytest.raises(ConfigError, match="block-bytes"):
        bench(*common(trace, folder, "4MiB"), "--block-bytes", "-1")
    with pytest.raises(SystemExit) as exit_info:
        bench(*common(trace, folder, "4MiB"), "--requests", "0")
    assert exit_info.value.code == 2
    assert not folder.exists()
