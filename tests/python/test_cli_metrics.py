"""`kvtier metrics`: an exporter of other processes' stores, and its text once."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from child_process import ROOT
from payload import payloads
from store_setup import BLOCK_BYTES, OpenStore, namespace_of

import kvtier
from kvtier.cli.main import main

pytest.importorskip("prometheus_client")


def use(store: kvtier.BlockStore) -> None:
    """Puts three blocks, gets them, and waits until other processes can know it."""
    ns = namespace_of(store)
    keys = ns.keys(range(12))
    ns.put(keys, payloads(keys, 1, BLOCK_BYTES))
    ns.get(keys, bytearray(3 * BLOCK_BYTES))
    while (kvtier.Monitor(str(store.config()["path"]["value"])).state().statistics)[
        "hit_blocks"
    ] != 3:
        store.flush()


@pytest.fixture
def folder(open_store: OpenStore, disk_folder: Path) -> Path:
    use(open_store(disk_folder / "store"))
    return disk_folder / "store"


def test_once_prints_what_a_textfile_collector_takes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["metrics", str(folder), "--once"]) == 0
    text = capsys.readouterr().out
    assert f'kvtier_up{{path="{folder}"}} 1.0\n' in text
    assert f'kvtier_hits_total{{path="{folder}",tier="host"}} 3.0\n' in text
    assert text.endswith("\n")


def test_once_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", str(folder), "--once", "--json"]) == 0
    samples = json.loads(capsys.readouterr().out)["samples"]
    found = [it for it in samples if it["name"] == "kvtier_hit_blocks_total"]
    assert found == [
        {"name": "kvtier_hit_blocks_total", "labels": {"path": str(folder)}, "value": 3}
    ]


def test_a_store_that_is_not_there_is_down_and_said(
    folder: Path, disk_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = disk_folder / "none"
    assert main(["metrics", str(folder), str(missing), "--once"]) == 1
    captured = capsys.readouterr()
    assert f'kvtier_up{{path="{missing}"}} 0.0\n' in captured.out
    assert f'kvtier_up{{path="{folder}"}} 1.0\n' in captured.out
    assert "does not exist" in captured.err
    assert not missing.exists()


@pytest.mark.parametrize(
    "arguments",
    [[], ["--port", "-1"], ["--port", "65536"], ["--port", "1", "--once"]],
)
def test_a_port_or_once_and_not_both(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(["metrics", str(folder), *arguments]) == 2
    assert "--once" in capsys.readouterr().err


def test_without_a_path_the_variable_names_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVTIER_PATH", str(folder))
    assert main(["metrics", "--once"]) == 0
    assert str(folder) in capsys.readouterr().out


def test_an_exporter_answers_for_several_stores_until_it_is_interrupted(
    folder: Path, open_store: OpenStore, disk_folder: Path
) -> None:
    use(open_store(disk_folder / "second"))
    command = [sys.executable, "-m", "kvtier", "metrics", str(folder), str(disk_folder / "second")]
    exporter = subprocess.Popen(
        [*command, "--port", "0", "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert exporter.stdout is not None
        told = json.loads(exporter.stdout.readline())
        assert told["paths"] == [str(folder), str(disk_folder / "second")]
        for _ in range(3):
            with urllib.request.urlopen(told["url"], timeout=30) as answer:
                text = answer.read().decode()
            for name in ("store", "second"):
                path = disk_folder / name
                assert f'kvtier_hits_total{{path="{path}",tier="host"}} 3.0\n' in text
        os.kill(exporter.pid, signal.SIGINT)
        assert exporter.wait(60) == 130
    finally:
        exporter.kill()
        exporter.wait()
        exporter.stdout.close()  # type: ignore[union-attr]
