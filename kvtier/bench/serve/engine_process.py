"""A `vllm serve` that this process starts, waits for and ends. Used from one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import kvtier
from kvtier.deadline import DeadlineError, within
from kvtier.http_stream import ServerError, ServerUrl, fetch_text

_HOST = "127.0.0.1"
_STOP_S_MAX = 30.0
_HEALTH_S_MAX = 5.0
_LOOK_EACH_S = 0.5
_TAIL_LINES = 6
_ERROR = "Error: "
_TAIL_BYTES = 1 << 16
_PROC = Path("/proc")
_RESERVED_CPUS = "VLLM_CPU_NUM_OF_RESERVED_CPU"
_SESSION_FIELD = 3
"""Of /proc/*/stat, after the name in brackets."""


class EngineProcess:
    """vLLM and the processes that it starts, in a process group of their own."""

    def __init__(self, process: asyncio.subprocess.Process, url: ServerUrl, log: Path) -> None:
        self.url = url
        self._process = process
        self._log = log

    @classmethod
    @asynccontextmanager
    async def start(
        cls, command: Sequence[str], *, environment: Mapping[str, str], log: Path
    ) -> AsyncIterator[EngineProcess]:
        """Starts the command with a port of its own, and ends all its processes afterwards.

        Raises ServerError when the program cannot be started.
        """
        port = _find_free_port()
        with log.open("ab") as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    "--host",
                    _HOST,
                    "--port",
                    str(port),
                    env={**os.environ, **environment},
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise ServerError(f"cannot start {command[0]}: {error}") from error
        engine = cls(process, ServerUrl(host=_HOST, port=port), log)
        try:
            yield engine
        finally:
            await engine._stop()

    async def wait_until_ready(self, timeout_s: float) -> None:
        """Raises ServerError, with the end of the log, when it ends or takes longer."""
        try:
            await within(timeout_s, self._wait_for_health())
        except DeadlineError as error:
            raise ServerError(
                f"vLLM was not ready after {timeout_s:g} s (--start-s); {self._ending()}"
            ) from error

    def describe_end(self) -> str | None:
        """Says how the process ended; None while it runs."""
        status = self._process.returncode
        return None if status is None else f"vLLM ended with status {status}; {self._ending()}"

    def memory_bytes(self) -> int | None:
        """Memory of all its processes now; what they share counts once. None when it is gone."""
        sizes = [_proportional_bytes(it) for it in _session_processes(self._process.pid)]
        return sum(sizes) or None

    async def _wait_for_health(self) -> None:
        while True:
            with contextlib.suppress(DeadlineError):
                await within(_LOOK_EACH_S, self._process.wait())
            ended = self.describe_end()
            if ended is not None:
                raise ServerError(ended)
            with contextlib.suppress(ServerError):
                status, _ = await fetch_text(self.url, "/health", timeout_s=_HEALTH_S_MAX)
                if status == 200:
                    return

    async def _stop(self) -> None:
        try:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(DeadlineError):
                await within(_STOP_S_MAX, self._process.wait())
        finally:
            # Also those that outlived the first process, and when this wait was cancelled.
            self._signal(signal.SIGKILL)
        await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _ending(self) -> str:
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        # The first error is the cause; what follows it are processes that miss each other.
        errors = list(dict.fromkeys(line.strip() for line in lines if _ERROR in line))
        shown = errors[:_TAIL_LINES] or lines[-_TAIL_LINES:]
        return f"from {self._log}:\n" + "\n".join(shown)


def engine_environment() -> dict[str, str]:
    """Variables that every engine gets: kvtier is found also where it runs from its sources."""
    environment = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    # On a CPU vLLM computes with one core less where it has a connector, or with one more where too
    # few would be left. All modes compute with the same.
    if _RESERVED_CPUS not in os.environ:
        environment[_RESERVED_CPUS] = "2"
    folder = Path(kvtier.__file__).parents[1]
    # An installed one stands among packages of another Python, which must not hide vLLM's.
    if folder.name not in ("site-packages", "dist-packages"):
        before = os.environ.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), *([before] if before else [])])
    return environment


async def find_packages(python: str, names: Sequence[str]) -> set[str]:
    """Returns which packages that Python has. Raises ServerError when it does not run."""
    program = (
        "import importlib.util, sys\n"
        "print([it for it in sys.argv[1:] if importlib.util.find_spec(it)])"
    )
    try:
        process = await asyncio.create_subprocess_exec(
            python, "-c", program, *names, stdout=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise ServerError(f"cannot run {python}: {error}") from error
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise ServerError(f"{python} ended with status {process.returncode}")
    return {name for name in names if repr(name) in output.decode()}


def default_python() -> str:
    return sys.executable


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _session_processes(session_id: int) -> list[Path]:
    found = []
    for folder in _PROC.iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            after_name = (folder / "stat").read_text(errors="replace").rpartition(")")[2]
            if int(after_name.split()[_SESSION_FIELD]) == session_id:
                found.append(folder)
    return found


def _proportional_bytes(folder: Path) -> int:
    with contextlib.suppress(OSError):
        for line in (folder / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
