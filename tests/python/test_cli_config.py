"""`kvtier config`: what it shows of a file, and what it refuses."""

import json
import re
from pathlib import Path

import pytest
from foreign_files import EDGE_FILE

from kvtier.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["config", *map(str, arguments)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.fixture
def edge_file(tmp_path: Path) -> Path:
    file = tmp_path / "edge.yaml"
    file.write_text(EDGE_FILE.format(folder=tmp_path / "kv"))
    return file


def test_json_has_settings_mapped_names_and_warnings(
    edge_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, edge_file, "--json")
    assert (code, err) == (0, "")
    shown = json.loads(out)
    assert set(shown) == {"settings", "mapped", "warnings"}
    disk_bytes = shown["settings"]["disk_bytes"]
    assert (disk_bytes["value"], disk_bytes["origin"]) == (500 * 10**9, "file")
    assert disk_bytes["place"] == f"{edge_file} line 6, storage.max_local_disk_size"
    # "auto" is shown as the bytes that it came to.
    assert isinstance(shown["settings"]["host_bytes"]["value"], int)
    assert "20 %" in shown["settings"]["host_bytes"]["note"]
    assert "place" not in shown["settings"]["io"]
    assert shown["mapped"]["storage.max_local_cpu_size"] == "host_bytes = auto"
    assert any("prefetch_ratio" in warning for warning in shown["warnings"])
    assert not (edge_file.parent / "kv").exists()


def test_people_see_units_and_exact_bytes_in_columns(
    edge_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVTIER_MAX_BLOCKS", "1000")
    code, out, _ = run(capsys, edge_file)
    assert code == 0
    settings, mapped = out.split("\n\n")[:2]
    lines = settings.splitlines()
    assert len({line.index(" = ") for line in lines}) == 1
    assert len({line.rindex("  (") for line in lines}) == 1
    by_name = {line.split()[0]: line for line in lines}
    assert "465.66 GiB (500000000000 bytes)" in by_name["disk_bytes"]
    assert f"(file: {edge_file} line 6, storage.max_local_disk_size)" in by_name["disk_bytes"]
    assert re.search(r"GiB \(\d+ bytes\) .*20 % of \d+ bytes", by_name["host_bytes"])
    assert "(environment: KVTIER_MAX_BLOCKS)" in by_name["max_blocks"]
    assert "= true " in by_name["checksum"]
    assert "= 30 s " in by_name["default_timeout_s"]
    assert "storage.chunk_size" in mapped
    assert "warning: storage.prefetch_ratio" in out


def test_without_a_file_nothing_is_mapped(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--json")
    assert code == 0
    assert json.loads(out)["mapped"] == {}


def test_a_wrong_file_exits_with_2_and_all_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "edge.yaml"
    file.write_text("storage:\n  chunk_siz: 1\nhost_byte: 1\nio: aio\n")
    monkeypatch.setenv("KVTIER_STALL_S", "soon")
    for arguments in ((file,), (file, "--json")):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (2, "")
        for part in ("4 settings", "line 2", "storage.chunk_size", "line 3", "line 4", "STALL_S"):
            assert part in err


def test_a_file_without_settings_is_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text("")
    code, out, _ = run(capsys, file)
    assert code == 0
    assert "states no settings" in out


def test_memory_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "large.yaml"
    file.write_text("storage: {max_local_cpu_size: 60000}\n")
    code, _, err = run(capsys, file)
    assert code == 2
    for part in ("need ", "have ", "reserve ", "line 1, storage.max_local_cpu_size"):
        assert part in err
