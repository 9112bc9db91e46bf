"""Checks in a process of their own: one that hangs, crashes or cannot be killed is told of."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvtier.cli.doctor.finding import Finding, Level
from kvtier.cli.doctor.group_process import GroupProcess, read_lines

WRITABLE = Finding(name="path", text="is writable")
#: Ample on any machine. What hangs for good meets its limit once it has said what it says.
AMPLE_S = 60.0
SHORT_S = 0.5


def child(*messages: object, then: str = "") -> list[str]:
    """A command that prints messages as the real child does, and then does something else."""
    lines = "\n".join(json.dumps(message) for message in messages)
    code = f"import os, signal\nprint({lines!r}, flush=True)\n{then}"
    return [sys.executable, "-c", code]


def finish_hanging(group: GroupProcess) -> list[Finding]:
    """Meets the limit when the child has said what it says, however slow the machine."""
    assert group._process is not None
    ready, _, _ = select.select([group._process.stdout], [], [], AMPLE_S)
    assert ready
    return group.finish(SHORT_S)


def test_what_lies_in_the_working_directory_is_not_run(
    tmp_path: Path, disk_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json.py", "kvtier.py", "numpy.py", "os.py", "sitecustomize.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'run')!r}, 'w')\nraise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path)
    findings = GroupProcess("path", str(disk_folder), "0").finish(AMPLE_S)
    assert not (tmp_path / "run").exists()
    assert not any("ended early" in it.text for it in findings)
    assert any(it.name == "path" for it in findings)


def test_the_real_child_looks_at_a_folder_and_leaves_nothing(disk_folder: Path) -> None:
    findings = GroupProcess("path", str(disk_folder), "0").finish(AMPLE_S)
    names = [finding.name for finding in findings]
    assert names[:5] == ["path", "file system", "space", "direct I/O", "fallocate"]
    assert findings[0].text == f"{disk_folder} is writable"
    assert list(disk_folder.iterdir()) == []


def test_the_real_child_is_found_from_any_folder(
    disk_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(disk_folder)
    findings = GroupProcess("path", "missing", "0").finish(AMPLE_S)
    assert findings[0].level is Level.OK
    assert f"does not exist yet, {disk_folder} is writable" in findings[0].text


def test_a_folder_that_hangs_is_unusable_and_named() -> None:
    group = GroupProcess("path", command=child({"begin": "path"}, then="signal.pause()"))
    (found,) = finish_hanging(group)
    assert (found.name, found.level) == ("path", Level.FAIL)
    assert "no answer within 0.5 s" in found.text
    assert "is left" not in found.text
    assert "network mount" in found.remedy


def test_what_was_found_before_it_hung_is_kept() -> None:
    command = child(
        {"begin": "path"},
        WRITABLE.describe(),
        {"begin": "disk health"},
        then="signal.pause()",
    )
    first, second = finish_hanging(GroupProcess("path", command=command))
    assert first == WRITABLE
    assert (second.name, second.level) == ("disk health", Level.WARN)


def test_a_driver_that_hangs_costs_the_gpu_only() -> None:
    group = GroupProcess("gpu", command=child({"begin": "gpu copy"}, then="signal.pause()"))
    (found,) = finish_hanging(group)
    assert (found.name, found.level) == ("gpu copy", Level.WARN)
    assert "nvidia-smi" in found.remedy


def test_a_child_that_cannot_be_killed_is_left_and_said_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = GroupProcess("path", command=child({"begin": "path"}, then="signal.pause()"))
    process = group._process
    assert process is not None

    def refuse(timeout: float | None = None) -> int:
        raise subprocess.TimeoutExpired("child", timeout or 0.0)

    with monkeypatch.context() as held:
        # As in a call of the kernel that does not come back: it takes no signal.
        held.setattr(process, "kill", lambda: None)
        held.setattr(process, "wait", refuse)
        (found,) = finish_hanging(group)
    assert process.poll() is None
    process.kill()
    process.wait()
    assert f"process {process.pid} hangs in the kernel and is left" in found.text


def test_a_child_that_crashes_is_told_with_what_it_said() -> None:
    crash = "os.write(2, b'driver: lost\\n'); os.kill(os.getpid(), signal.SIGKILL)"
    command = child({"begin": "gpu"}, then=crash)
    (found,) = GroupProcess("gpu", command=command).finish(AMPLE_S)
    assert (found.name, found.level) == ("gpu", Level.WARN)
    assert f"exit code {-signal.SIGKILL}: driver: lost" in found.text


def test_a_child_that_says_nothing_is_no_good_sign() -> None:
    (found,) = GroupProcess("gpu", command=[sys.executable, "-c", ""]).finish(AMPLE_S)
    assert (found.name, found.level) == ("gpu", Level.WARN)


def test_a_child_that_cannot_be_started_is_told(disk_folder: Path) -> None:
    group = GroupProcess("gpu", command=[str(disk_folder / "no-python")])
    (found,) = group.finish(AMPLE_S)
    assert (found.name, found.level) == ("gpu", Level.WARN)
    assert "No such file" in found.text
    assert group.kill()


def test_ctrl_c_while_waiting_ends_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    group = GroupProcess("path", command=child({"begin": "path"}, then="signal.pause()"))

    def interrupt(timeout: float) -> None:
        raise KeyboardInterrupt

    assert group._process is not None
    monkeypatch.setattr(group._process, "communicate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        group.finish(AMPLE_S)
    assert group._process.poll() == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(group._process.pid, 0)


def test_lines_that_are_none_of_ours_are_passed_over() -> None:
    found = json.dumps(WRITABLE.describe()).encode()
    lines = [b"driver says hello", b'{"begin": "path"}', b"[]", b"7", found, found[:20]]
    assert read_lines(b"\n".join(lines)) == ([WRITABLE], "path", False)
    assert read_lines(b"\n".join([found, b'{"end": true}', found])) == ([WRITABLE], "", True)
    assert read_lines(b"") == ([], "", False)
