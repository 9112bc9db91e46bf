"""`kvtier doctor` as a whole: its JSON, exit codes, and that it comes to an end."""

from __future__ import annotations

import json
import sys
import time

import pytest

from kvtier.cli.doctor import command
from kvtier.cli.doctor.finding import Finding, Level
from kvtier.cli.doctor.group_process import GroupProcess
from kvtier.cli.main import main


def finding(level: Level) -> Finding:
    return Finding(name="swap", level=level, text="what is", why="it costs", remedy="do this")


@pytest.mark.parametrize(
    ("level", "verdict", "code"),
    [
        (Level.OK, "ok", 0),
        (Level.NOTE, "ok", 0),
        (Level.WARN, "degraded", 1),
        (Level.FAIL, "unusable", 1),
    ],
)
def test_the_verdict_is_the_exit_code_and_stands_in_json(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    level: Level,
    verdict: str,
    code: int,
) -> None:
    monkeypatch.setattr(command, "find_all", lambda *_: [finding(level)])
    assert main(["doctor", "--json"]) == code
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"verdict", "is_good", "findings", "seconds"}
    assert (report["verdict"], report["is_good"]) == (verdict, code == 0)
    assert report["findings"] == [finding(level).describe()]
    assert main(["doctor", "-v"]) == code
    assert capsys.readouterr().out.splitlines()[-2].startswith(verdict)


def test_wrong_usage_is_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--probe-bytes", "many"]) == 2
    assert "--probe-bytes" in capsys.readouterr().err


def test_ctrl_c_ends_the_children(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[GroupProcess] = []

    class Remembered(GroupProcess):
        def __init__(self, *arguments: str) -> None:
            super().__init__(*arguments)
            groups.append(self)

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "GroupProcess", Remembered)
    monkeypatch.setattr(command, "list_machine_checks", interrupt)
    assert main(["doctor", "missing", "--probe-bytes", "0"]) == 130
    assert len(groups) == 2
    assert all(group._process and group._process.poll() is not None for group in groups)


def test_a_folder_that_hangs_holds_the_doctor_for_its_limit_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Hanging(GroupProcess):
        def __init__(self, *arguments: str) -> None:
            code = "import signal; signal.pause()"
            super().__init__(*arguments, command=[sys.executable, "-c", code])

    monkeypatch.setattr(command, "GroupProcess", Hanging)
    monkeypatch.setattr(command, "_GROUP_TIMEOUT_S", 0.5)
    started_s = time.monotonic()
    assert main(["doctor", "/dead", "--json"]) == 1
    # Only what hangs for good would take as long.
    assert time.monotonic() - started_s < 60
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "unusable"
    assert [it["name"] for it in report["findings"]][:2] == ["path", "gpu"]
    assert "memory" in {it["name"] for it in report["findings"]}
