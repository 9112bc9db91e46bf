"""Runs of a real engine on a CPU, each in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
RUN_S = 900
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}",
}


def run_child(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S,
    )


def write_model(folder: Path, kind: str = "full") -> Path:
    """Makes a model of tiny_model.py's in `folder`."""
    done = run_child("tiny_model.py", str(folder), kind)
    assert done.returncode == 0, done.stderr
    return folder


def run_plan(plan: dict[str, Any], out: Path) -> dict[str, Any]:
    """Returns what engine_child.py wrote to `out`."""
    done = run_child("engine_child.py", json.dumps(plan), str(out))
    assert done.returncode == 0, done.stderr[-4000:]
    answered: dict[str, Any] = json.loads(out.read_text())
    return answered
