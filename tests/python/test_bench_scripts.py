"""The scripts in bench/ run as a user runs them, on little data. One process at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def run_script(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / name), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_the_demo_uses_both_tiers_and_leaves_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    chains = [[100 * (i % 40) + b for b in range(8)] for i in range(300)]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps({"hash_ids": ids}) + "\n" for ids in chains))
    words = ["--trace", trace, "--block-bytes", "4KiB", "--out", tmp_path / "out"]
    answer = run_script("demo.py", *words)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "kill -9" in answer.stdout
    assert "were right, through two restarts" in answer.stdout
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["demo.png"]


def test_the_demo_names_a_bad_trace(tmp_path: Path) -> None:
    answer = run_script("demo.py", "--trace", tmp_path / "missing", "--out", tmp_path / "out")
    assert answer.returncode == 1
    assert "cannot read trace" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_what_is_written_per_byte_offered_stays_within_its_bound(tmp_path: Path) -> None:
    words = ["--quick", "--json", "--only", "written", "--path", tmp_path]
    answer = run_script("store_figures.py", *words)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    figures = json.loads(answer.stdout)
    assert len(figures) == 3
    assert all(figure["good"] for figure in figures.values())
    assert list(tmp_path.iterdir()) == []
