"""`make demo` itself: a real model, cold, from host memory, and from disk after a restart."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[4]
DEMO_S_MAX = 600


@pytest.mark.timeout(DEMO_S_MAX + 60)
def test_the_demo_finds_every_block_again_and_gives_the_same_answers(tmp_path: Path) -> None:
    """It judges itself: a document that is computed again, or another answer, fails it."""
    words = [sys.executable, str(ROOT / "bench/vllm_demo.py"), "--python", sys.executable]
    done = subprocess.run(
        [*words, "--documents", "2", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEMO_S_MAX,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All answers are the same" in done.stdout
