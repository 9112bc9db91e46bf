"""GroupProcess: checks in a process of their own, so that what they look at may hang or crash.

`python -m kvtier.cli.doctor.group_process path PATH BYTES` (or `gpu`) is the other side: one JSON
line before each check, one for each finding, one at the end. A process is used from one thread.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import kvtier
from kvtier.cli.doctor.finding import Finding, Level, run_check

_PROGRAM: Final = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from kvtier.cli.doctor.group_process import run
run(sys.argv[2:])
"""
# A killed process ends at once, unless the kernel holds it in a call; and what one has said before
# its time was over is read even if another was waited for until then.
_END_S: Final = 0.2
_PATH: Final = "path"
# Of a folder nothing can be said without these.
_NEEDED_CHECKS: Final = frozenset({"path", "file system", "space", "direct I/O", "fallocate"})


class GroupProcess:
    """A child that runs one group of checks; started at once."""

    def __init__(self, group: str, *arguments: str, command: Sequence[str] | None = None) -> None:
        """command: of the child, for tests."""
        self._group = group
        self._started_s = time.monotonic()
        # Isolated: a file json.py in the working directory, which may be anybody's, is not run.
        # The child must find what this process finds, its package foremost.
        own = (sys.executable, "-I", "-c", _PROGRAM, json.dumps(_search_path()), group, *arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._refusal = ""
        try:
            self._process = subprocess.Popen(
                command or own,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            self._refusal = str(error)

    def finish(self, timeout_s: float) -> list[Finding]:
        """Returns the findings, with one more when the child hung, crashed or left checks out.

        timeout_s: since the start; then the child is killed, and not waited for if it cannot end.
        """
        if self._process is None:
            return [self._refused()]
        remaining_s = max(_END_S, self._started_s + timeout_s - time.monotonic())
        try:
            out, errors = self._process.communicate(timeout=remaining_s)
        except subprocess.TimeoutExpired as expired:
            has_ended = self.kill()
            findings, running, _ = read_lines(expired.output or b"")
            pid = self._process.pid
            left = "" if has_ended else f"; process {pid} hangs in the kernel and is left"
            return [*findings, self._hung(running, timeout_s, left)]
        except BaseException:
            self.kill()
            raise
        findings, running, is_whole = read_lines(out)
        if not is_whole:
            findings.append(self._crashed(running, self._process.returncode, errors))
        return findings

    def kill(self) -> bool:
        """Returns whether the child is gone; one in a hanging call of the kernel is left behind."""
        process = self._process
        if process is None:
            return True
        with suppress(ProcessLookupError):
            process.kill()
        try:
            process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            return False
        finally:
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        return True

    def _refused(self) -> Finding:
        return Finding(
            name=self._group,
            level=Level.WARN,
            text=f"could not be looked at, no process could be started: {self._refusal}",
            why="nothing is known of it",
            remedy=f"let {sys.executable} be run, with more processes (ulimit -u) and memory",
        )

    def _hung(self, running: str, timeout_s: float, left: str) -> Finding:
        name = running or self._group
        is_fatal = self._group == _PATH and (not running or running in _NEEDED_CHECKS)
        return Finding(
            name=name,
            level=Level.FAIL if is_fatal else Level.WARN,
            text=f"no answer within {timeout_s:g} s{left}",
            why="it gives no answer: an engine that waits for it would hang as well",
            remedy="look for a dead network mount or disk: dmesg, mount, ls on the folder"
            if self._group == _PATH
            else "look whether nvidia-smi answers; dmesg tells of a GPU that is lost",
        )

    def _crashed(self, running: str, exit_code: int, errors: bytes) -> Finding:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        return Finding(
            name=running or self._group,
            level=Level.WARN,
            text=f"the check ended early, exit code {exit_code}"
            + (f": {lines[-1]}" if lines else ""),
            why="nothing is known of it and of the checks after it",
            remedy="please report it; kvtier doctor --json has the text",
        )


def read_lines(out: bytes) -> tuple[list[Finding], str, bool]:
    """Returns the findings, the check that was running last, and whether the end was reached."""
    findings: list[Finding] = []
    running = ""
    for line in out.splitlines():
        try:
            message: dict[str, Any] = json.loads(line)
            if "end" in message:
                return findings, "", True
            if "begin" in message:
                running = str(message["begin"])
            else:
                findings.append(Finding.from_description(message))
        except (ValueError, KeyError, TypeError):
            # A line that was cut, or that a driver printed.
            continue
    return findings, running, False


def main(arguments: Sequence[str]) -> int:
    """Runs the group that the arguments name, and prints it."""
    from kvtier.cli.doctor.check_groups import NamedCheck, list_gpu_checks, list_path_checks

    checks: Iterator[NamedCheck]
    if arguments[0] == _PATH:
        checks = list_path_checks(arguments[1], int(arguments[2]))
    else:
        checks = list_gpu_checks()
    for name, check in checks:
        _print({"begin": name})
        for finding in run_check(name, check):
            _print(finding.describe())
    _print({"end": True})
    return 0


def _print(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)


def _search_path() -> list[str]:
    """Returns where this process looks for modules, less the working directory."""
    package_parent = str(Path(kvtier.__file__).resolve().parent.parent)
    places = [it for it in sys.path if it and Path(it).resolve() != Path.cwd()]
    # Behind the standard library, and before another kvtier that may be installed.
    installed = [i for i, it in enumerate(places) if Path(it).name.endswith("-packages")]
    places.insert(installed[0] if installed else len(places), package_parent)
    return places


def run(arguments: Sequence[str]) -> None:
    """Ends the process with what main() returns."""
    try:
        sys.exit(main(arguments))
    except (KeyboardInterrupt, BrokenPipeError):
        # Whoever asked goes away as well, and says so.
        os._exit(130)
