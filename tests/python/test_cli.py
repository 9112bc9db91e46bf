"""The command line: exit codes, JSON, and that looking changes nothing."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from payload import payloads

import kvtier
from kvtier.cli.main import main

OpenStore = Callable[..., kvtier.BlockStore]
ROOT = Path(__file__).resolve().parents[2]
NUM_BLOCKS = 20
BLOCK_BYTES = 10_000


@pytest.fixture
def folder(open_store: OpenStore, disk_folder: Path) -> Path:
    """A store with some blocks, closed cleanly."""
    store = open_store(disk_folder / "store")
    ns = store.namespace(
        model="evil\n{name}", block_bytes=BLOCK_BYTES, fingerprint="f", parts=[9000, 0, 1000]
    )
    keys = ns.keys(range(16 * NUM_BLOCKS))
    ns.put(keys, payloads(keys, 1, BLOCK_BYTES))
    store.close()
    return disk_folder / "store"


def listing(folder: Path) -> dict[str, bytes]:
    return {it.name: it.read_bytes() for it in folder.iterdir()}


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict]:
    code = main([*map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def damage(folder: Path) -> None:
    keys_in = [it for it in folder.iterdir() if it.name.startswith("segment-")]
    assert keys_in
    for file in keys_in:
        data = bytearray(file.read_bytes())
        # Behind header and table, through the payload.
        for offset in range(64 << 10, len(data), 512):
            data[offset] ^= 1
        file.write_bytes(data)


def test_verify_finds_nothing_wrong_in_a_good_store(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = run_json(capsys, "verify", folder)
    assert code == 0
    assert (report["blocks"], report["bytes"]) == (NUM_BLOCKS, NUM_BLOCKS * BLOCK_BYTES)
    assert report["num_corrupt"] == report["damaged_entries"] == report["unreadable"] == 0
    assert report["is_good"] is True
    assert main(["verify", str(folder)]) == 0
    assert "good" in capsys.readouterr().out


def test_verify_finds_flipped_bytes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(folder)
    code, report = run_json(capsys, "verify", folder)
    assert code == 1
    assert report["num_corrupt"] > 0
    assert len(report["damaged"][0]["key"]) == 32
    assert main(["verify", str(folder)]) == 1
    assert "found damage" in capsys.readouterr().out


def test_inspect_shows_every_field_and_changes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listing(folder)
    code, contents = run_json(capsys, "inspect", folder)
    assert code == 0
    assert contents["is_clean"] is True
    (namespace,) = contents["namespaces"]
    assert namespace["description"]["model"] == "evil\n{name}"
    assert namespace["description"]["parts"] == [9000, 0, 1000]
    assert (namespace["num_blocks"], namespace["payload_bytes"]) == (NUM_BLOCKS, 200_000)
    assert main(["inspect", str(folder)]) == 0
    text = capsys.readouterr().out
    assert namespace["id"] in text
    assert "evil\\n" in text
    assert listing(folder) == before


def test_stats_show_bytes_per_token_d10(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = listing(folder)
    code, summary = run_json(capsys, "stats", folder)
    assert code == 0
    assert summary["blocks"] == NUM_BLOCKS
    assert summary["holder"] is None
    assert summary["namespaces"][0]["bytes_per_token"] == BLOCK_BYTES / 16
    assert summary["namespaces"][0]["tokens"] == NUM_BLOCKS * 16
    slot_bytes = summary["live"]["disk_capacity"] // (
        summary["namespaces"][0]["capacity_tokens"]["disk"] // 16
    )
    assert BLOCK_BYTES <= slot_bytes <= BLOCK_BYTES + 4096
    assert summary["allocated_bytes"] >= NUM_BLOCKS * BLOCK_BYTES
    assert main(["stats", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "nobody" in text
    assert "delivered 0 (0.0%)" in text
    assert summary["live"]["state"] == "closed"
    assert listing(folder) == before


def test_stats_and_inspect_work_beside_an_open_store(
    open_store: OpenStore, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(folder)
    code, summary = run_json(capsys, "stats", folder)
    assert code == 0
    assert str(os.getpid()) in summary["holder"]
    while summary["live"] is None:  # This run has told nothing so far; the former's is gone.
        assert summary["live_problem"] == "nothing was told of them yet"
        summary = run_json(capsys, "stats", folder)[1]
    assert summary["live"]["pid"] == os.getpid()
    assert summary["live"]["stats"]["tiers"]["disk"]["health"] == "ok"
    assert run_json(capsys, "inspect", folder)[0] == 0
    # What changes the folder, or needs it still, is refused.
    for arguments in (["verify", str(folder)], ["wipe", "--yes", str(folder)]):
        assert main(arguments) == 2
        assert str(os.getpid()) in capsys.readouterr().err
    assert store.stats()["tiers"]["disk"]["blocks"] == NUM_BLOCKS  # type: ignore[index]


def test_wipe_removes_own_files_only_k6(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "notes.txt").write_text("mine")
    before = listing(folder)
    code, summary = run_json(capsys, "wipe", "--dry-run", folder)
    assert (code, summary["is_removed"]) == (0, False)
    assert set(summary["files"]) == set(before) - {"notes.txt"}
    for answer in ("", "n\n", "maybe\n"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        assert main(["wipe", str(folder)]) == 2
    assert listing(folder) == before
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert main(["wipe", str(folder)]) == 0
    assert set(listing(folder)) == {"notes.txt"}
    assert main(["wipe", "--yes", str(folder)]) == 0


@pytest.mark.parametrize("command", ["stats", "inspect", "verify", "wipe"])
def test_a_folder_that_is_none_is_refused_and_not_made(
    command: str, disk_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = disk_folder / "missing"
    assert main([command, str(missing)]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert not missing.exists()
    file = disk_folder / "file"
    file.write_text("x")
    assert main([command, str(file)]) == 2
    assert "is not a folder" in capsys.readouterr().err
    empty = disk_folder / "empty"
    empty.mkdir()
    assert main([command, str(empty)]) == (0 if command == "wipe" else 2)
    assert list(empty.iterdir()) == []


def test_config_shows_values_and_origins(
    disk_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk_folder / "kvtier.yaml"
    file.write_text("host_bytes: 1MiB\nstall_s: 3\n")
    monkeypatch.setenv("KVTIER_STALL_S", "4")
    code, shown = run_json(capsys, "config", file)
    assert code == 0
    assert set(shown) == {"settings", "mapped", "warnings"}
    by_file = {"value": 1 << 20, "origin": "file", "place": f"{file} line 1"}
    assert shown["settings"]["host_bytes"] == by_file
    by_variable = {"value": 4.0, "origin": "environment", "place": "KVTIER_STALL_S"}
    assert shown["settings"]["stall_s"] == by_variable
    assert shown["settings"]["io"]["origin"] == "default"
    assert main(["config"]) == 0
    assert "host_bytes" in capsys.readouterr().out
    assert main(["config", "--explain"]) == 0
    assert "when raised" in capsys.readouterr().out


def test_config_refuses_a_misspelt_name(
    disk_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = disk_folder / "kvtier.yaml"
    file.write_text("host_byte: 1MiB\n")
    assert main(["config", str(file)]) == 2
    assert "did you mean host_bytes" in capsys.readouterr().err


def test_doctor_looks_at_folder_and_machine(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listing(folder)
    code, report = run_json(capsys, "doctor", folder, "--probe-bytes", "4MiB")
    assert code in {0, 1}
    assert report["is_good"] == (code == 0)
    names = {it["name"] for it in report["findings"]}
    assert names >= {"path", "space", "file system", "direct I/O", "fallocate", "raw rate"}
    assert names >= {"memory", "cpus", "memlock", "swap", "io_uring"}
    for it in report["findings"]:
        assert it["is_good"] or it["remedy"], it
    assert listing(folder) == before
    assert main(["doctor"]) in {0, 1}


def test_doctor_does_not_make_the_folder(
    disk_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(disk_folder / "a" / "b"), "--probe-bytes", "0"]) in {0, 1}
    assert "does not exist yet" in capsys.readouterr().out
    assert list(disk_folder.iterdir()) == []
    (disk_folder / "file").write_text("x")
    assert main(["doctor", str(disk_folder / "file" / "b"), "--probe-bytes", "0"]) == 1
    assert "not a folder" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [[], ["nothing"], ["verify"], ["verify", "a", "b"], ["stats", "--jsno", "a"]]
)
def test_a_wrong_command_line_exits_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_the_module_runs_as_a_program(folder: Path) -> None:
    for program in (["-m", "kvtier"], ["-m", "kvtier.cli.main"]):
        command = [sys.executable, *program, "verify", str(folder)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_goes_away_is_no_error(folder: Path) -> None:
    command = f"{sys.executable} -m kvtier inspect {folder} | head -c 1"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
