"""Runs Python code in a process of its own, from the root of the repository. Stateless."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = Path(__file__).resolve().parent
# Every child may use the payloads of the tests.
PRELUDE = f"import sys\nsys.path[:0] = [{str(ROOT)!r}, {str(TESTS)!r}]\n"


# Warnings about the machine are not what a child is tested for: where the folder lies, and how much
# a loop could write (a fast machine writes its disk tier over, a slow one still writes at the end).
MACHINE_WARNINGS = (
    "choose a folder on a data disk",
    "choose a folder on a local SSD",
    "the disk tier was written over and has served nothing",
    "closed before everything was on disk",
)


def without_machine_warnings(
    done: subprocess.CompletedProcess[str],
) -> subprocess.CompletedProcess[str]:
    lines = done.stderr.splitlines(keepends=True)
    kept = [line for line in lines if not any(words in line for words in MACHINE_WARNINGS)]
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout, "".join(kept))


def command_of(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", PRELUDE + code, *map(str, arguments)]


def run_python(
    code: str, *arguments: object, timeout_s: float = 100, **environment: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command_of(code, *arguments),
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return without_machine_warnings(done)


def run_well(code: str, *arguments: object, timeout_s: float = 100, **environment: str) -> str:
    """Returns what it printed; it must end well and print no warning or error."""
    done = run_python(code, *arguments, timeout_s=timeout_s, **environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-4000:]
    return done.stdout


class Child:
    """A process that says lines and is ended by the test."""

    def __init__(self, code: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            command_of(code, *arguments), cwd=ROOT, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    def read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")
