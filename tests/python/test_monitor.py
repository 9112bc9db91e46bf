"""Monitor: hit rate and use from outside, and clear words where there is nothing to watch."""

from pathlib import Path

import pytest
from child_process import run_well

import kvtier
from kvtier.statistics import NUM_LATENCY_BUCKETS, find_hit_rate, find_quantile_s

BLOCK_BYTES = 4096


def use_store(folder: Path) -> None:
    """Puts four blocks, asks for eight and is given four."""
    with kvtier.open(folder, host_bytes="4MiB", disk_bytes="64MiB") as store:
        ns = store.namespace(model="m", block_bytes=BLOCK_BYTES, block_tokens=1, fingerprint="f")
        ns.put(ns.keys(range(4)), bytes(4 * BLOCK_BYTES))
        assert ns.get(ns.keys(range(8)), bytearray(8 * BLOCK_BYTES)).num_blocks == 4


def test_hit_rate_and_use_of_a_store(tmp_path: Path) -> None:
    use_store(tmp_path)
    stats = kvtier.Monitor(tmp_path).get_stats()
    assert stats["cache_hit_rate"] == 0.5
    assert isinstance(stats["disk_usage"], int)
    assert 0 < stats["memory_usage"] <= stats["memory_capacity"] == 4 << 20  # type: ignore[operator]
    assert stats["state"] == "closed"
    assert stats["stats"]["get_blocks"] == 8  # type: ignore[index]
    assert (stats["holders"], stats["events"]) == ([], [])


@pytest.mark.parametrize("kind", ["text", "mapping", "config", "file", "environment"])
def test_a_monitor_takes_what_names_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = tmp_path / "store"
    use_store(folder)
    file = tmp_path / "kvtier.yaml"
    file.write_text(f"path: {folder}\nhost_bytes: 4MiB\n")
    if kind == "environment":
        monkeypatch.setenv("KVTIER_PATH", str(folder))
    named: dict[str, object] = {
        "text": str(folder),
        "mapping": {"path": str(folder)},
        "config": kvtier.Config(path=folder),
        "file": file,
        "environment": None,
    }
    assert kvtier.Monitor(named[kind]).get_stats()["cache_hit_rate"] == 0.5


@pytest.mark.parametrize("named", [None, {}, {"host_bytes": "1GiB"}])
def test_without_a_folder_there_is_nothing_to_watch(named: object) -> None:
    with pytest.raises(kvtier.ConfigError, match="KVTIER_PATH"):
        kvtier.Monitor(named)


def test_what_is_no_place_at_all_is_refused() -> None:
    with pytest.raises(kvtier.ConfigError, match="int"):
        kvtier.Monitor(7)


def test_a_folder_that_is_missing_empty_or_old_is_named(tmp_path: Path) -> None:
    with pytest.raises(kvtier.ConfigError, match="does not exist"):
        kvtier.Monitor(tmp_path / "none").get_stats()
    with pytest.raises(kvtier.ConfigError, match="there is no store in"):
        kvtier.Monitor(tmp_path).get_stats()
    use_store(tmp_path)
    (tmp_path / "kvtier.live").unlink()
    with pytest.raises(kvtier.ConfigError, match="has told nothing of itself"):
        kvtier.Monitor(tmp_path).get_stats()


def test_who_looks_first_is_measured_by_what_he_looked_for() -> None:
    counts = {"get_blocks": 4, "lookup_blocks": 8, "hit_blocks": 4}
    assert find_hit_rate(counts) == 0.5
    assert find_hit_rate({**counts, "lookup_blocks": 0}) == 1.0
    assert find_hit_rate(dict.fromkeys(counts, 0)) == 0.0


def test_quantiles_are_the_upper_bounds_of_buckets() -> None:
    counts = [0] * NUM_LATENCY_BUCKETS
    assert find_quantile_s(counts, 0.5) == 0.0
    counts[3] = 99
    counts[10] = 1
    assert find_quantile_s(counts, 0.5) == 8e-6
    assert find_quantile_s(counts, 0.99) == 8e-6
    assert find_quantile_s(counts, 1.0) == 1024e-6
    counts[-1] = 1000
    assert find_quantile_s(counts, 0.99) == pytest.approx(2**25 / 1e6)


def test_the_loop_of_the_examples_prints_until_the_store_is_closed(tmp_path: Path) -> None:
    use_store(tmp_path)
    example = Path(__file__).resolve().parents[2] / "examples/watch_store.py"
    printed = run_well(example.read_text(encoding="utf-8"), tmp_path)
    assert printed.startswith("closed: hit rate 50.0%, 0.00 of 0.0")
    assert printed.count("\n") == 1
