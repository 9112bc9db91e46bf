"""The simulation of policies through the extension, and the script that prints its table."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from test_bench_scripts import run_script

import kvtier
from kvtier import _core
from kvtier.bench.trace import read_trace

# 0.98 x the best fixed policy at each size, in percent: the README of the trace.
BOUNDS = {1_000: 8.13, 3_000: 13.23, 10_000: 21.36, 30_000: 31.95}


def arrays(requests: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    ids = np.array([block for request in requests for block in request], dtype=np.uint64)
    return ids, np.cumsum([len(request) for request in requests]).astype(np.uint64)


def test_a_small_trace_gives_the_same_counts_as_by_hand() -> None:
    ids, ends = arrays([[1, 2, 3], [1, 2, 4], [5], [1, 2, 3]])
    assert _core.simulate_policy(ids, ends, "lru", 10) == (5, 5)
    assert _core.count_optimal_hits(ids, ends, 10) == 5
    assert _core.count_optimal_hits(ids, ends, 1) == 2


def test_bad_traces_are_refused() -> None:
    ids, ends = arrays([[1, 2], [3]])
    for bad_ends in ([2, 1], [4]):
        with pytest.raises(kvtier.UsageError):
            _core.simulate_policy(ids, np.array(bad_ends, dtype=np.uint64), "lru", 10)
    with pytest.raises(kvtier.UsageError):
        _core.simulate_policy(ids, ends, "fifo", 10)
    with pytest.raises(kvtier.UsageError):
        _core.count_optimal_hits(ids, ends, 0)


def test_the_default_reaches_its_bounds_on_the_trace_at_every_size() -> None:
    shared = SHARED
    if not shared:
        pytest.skip("no trace: KVTIER_SHARED is not set")
    trace = Path(shared) / "traces" / "mooncake_conversation.jsonl.xz"
    requests = [list(request.hash_ids) for request in read_trace(trace)]
    ids, ends = arrays(requests)  # type: ignore[arg-type]
    for capacity, bound in BOUNDS.items():
        num_hits, _ = _core.simulate_policy(ids, ends, "adaptive", capacity)
        assert 100 * num_hits / len(ids) >= bound


def test_the_script_prints_every_load_and_the_optimum_is_the_most(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    chains = [[100 * (i % 40) + b for b in range(8)] for i in range(300)]
    trace.write_text("".join(json.dumps({"hash_ids": ids}) + "\n" for ids in chains))
    words = ["--trace", trace, "--only", "trace", "one-shot", "--blocks", 100, "--json"]
    answer = run_script("policies.py", *words)
    assert answer.returncode == 0, answer.stderr
    results = json.loads(answer.stdout)
    assert set(results) == {"trace", "one-shot"}
    for rows in results.values():
        assert all(rate <= rows["100"]["optimum"] for rate in rows["100"].values())


def test_a_small_tier_takes_to_the_next_documents_at_once() -> None:
    """What three rounds of questions left is worth nothing, and no store is too small to see it."""
    answer = run_script("policies.py", "--only", "sets", "--json")
    for capacity, rates in json.loads(answer.stdout)["sets"].items():
        assert rates["adaptive"] > 0.98 * rates["LRU"], capacity


def test_a_tier_that_knows_other_habits_learns_new_ones() -> None:
    """Twenty thousand uses of a few prompts, then documents that are asked three times each."""
    hot = [[100 * (number * 7919 % 8) + i for i in range(40)] for number in range(500)]
    sets = [
        [10_000 + 1_000 * (number // 18) + 100 * (number % 6) + i for i in range(60)]
        for number in range(18 * 10)
    ]
    later_hits = {}
    for policy in ("lru", "adaptive"):
        before, after = (
            _core.simulate_policy(*arrays(requests), policy, 540)[0]
            for requests in (hot, hot + sets)
        )
        later_hits[policy] = after - before
    assert later_hits["adaptive"] > 0.9 * later_hits["lru"]


def test_a_large_tier_forgets_a_scan_that_was_long() -> None:
    """A hundred stores' worth of what never comes back, then blocks that come back once each."""
    scan = [[10**7 + 8 * number + i for i in range(8)] for number in range(50_000)]
    pairs: list[list[int]] = []
    for group in range(15):
        chains = [[8 * (250 * group + number) + i for i in range(8)] for number in range(250)]
        pairs += chains * 2
    hits = {
        policy: _core.simulate_policy(*arrays(scan + pairs), policy, 4_000)[0]
        for policy in ("lru", "adaptive")
    }
    assert hits["lru"] == 15 * 250 * 8
    assert hits["adaptive"] > 0.5 * hits["lru"]


# Read at import: a fixture hides KVTIER_* variables from the tests.
SHARED = os.environ.get("KVTIER_SHARED")
