"""A real Prometheus on a free port, for tests. Ended by its context manager."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from free_port import find_free_port

DEADLINE_S = 90
_LOOK_INTERVAL_S = 0.2


def find_program(name: str) -> str:
    """Returns its path; skips the test where it is not installed."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed: apt-get install prometheus")
    return path


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    """Looks until it is so: other processes have no event to wait for."""
    end_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end_s, f"not within {DEADLINE_S} s: {what}"
        threading.Event().wait(_LOOK_INTERVAL_S)


class PrometheusServer:
    """Scrapes one target once a second and evaluates the rules in `rules_file`."""

    def __init__(self, folder: Path, target: str, rules_file: Path) -> None:
        self._log = folder / "prometheus.log"
        self._port = find_free_port()
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules_file)],
            "scrape_configs": [
                {"job_name": "kvtier", "static_configs": [{"targets": [target]}]},
            ],
        }
        file = folder / "prometheus.yml"
        file.write_text(json.dumps(config))  # JSON is YAML.
        command = [
            find_program("prometheus"),
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def __enter__(self) -> PrometheusServer:
        wait_for(self._is_ready, "Prometheus is ready")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, what: str, **parameters: str) -> dict[str, object]:
        """Returns `data` of an answer; fails the test with Prometheus' own words."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as error:
            pytest.fail(f"{parameters}: {error.read().decode()}")
        assert told["status"] == "success", told
        data: dict[str, object] = told["data"]
        return data

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Returns labels and value of each series."""
        found = self.ask("query", query=expression)["result"]
        assert isinstance(found, list)
        return [(it["metric"], float(it["value"][1])) for it in found]

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text(errors="replace")[-4000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=5):
                return True
        except OSError:
            return False
