"""What importing kvtier costs, and what it must not bring along."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEASURE = """
import time
start_ns = time.perf_counter_ns()
import kvtier
print((time.perf_counter_ns() - start_ns) / 1e6)
"""
WALL = """
import subprocess, sys, time
start_ns = time.perf_counter_ns()
subprocess.run([sys.executable, "-m", "kvtier.cli.main", *sys.argv[1:]], check=True,
               stdout=subprocess.DEVNULL)
print((time.perf_counter_ns() - start_ns) / 1e6)
"""
BARE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {forbidden}:
            raise AssertionError("imported " + name)
sys.meta_path.insert(0, Refuse())
{code}
"""


def run(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def fastest_ms(code: str, *arguments: str) -> float:
    """The fastest of some runs: the machine may be busy with other things."""
    return min(float(run(code, *arguments)) for _ in range(7))


def test_the_import_takes_less_than_a_tenth_of_a_second() -> None:
    assert fastest_ms(MEASURE) < 100


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["verify", "--help"]])
def test_help_is_there_in_150_ms(arguments: list[str]) -> None:
    assert fastest_ms(WALL, *arguments) < 150


def test_the_import_brings_nothing_heavy() -> None:
    forbidden = {"torch", "numpy", "matplotlib", "rich", "yaml", "vllm", "lmcache", "sglang"}
    run(BARE.format(forbidden=forbidden, code="import kvtier; kvtier.Outcome.DONE"))


def test_a_store_in_memory_works_without_torch_and_yaml() -> None:
    code = """
import kvtier
with kvtier.open(host_bytes="4MiB") as store:
    ns = store.namespace(model="m", block_bytes=64, fingerprint="f")
    keys = ns.keys(range(32))
    out = bytearray(128)
    assert ns.put(keys, bytes(range(128))).num_accepted == 2
    assert ns.get(keys, out).num_blocks == 2 and out == bytes(range(128))
"""
    run(BARE.format(forbidden={"torch", "matplotlib", "rich", "yaml"}, code=code))


def test_every_public_name_is_there() -> None:
    code = "import kvtier\nfor name in kvtier.__all__: getattr(kvtier, name)\nprint(dir(kvtier))"
    assert "BlockStore" in run(code)
    run(
        "import kvtier\ntry: kvtier.nothing\nexcept AttributeError: pass\nelse: raise SystemExit(1)"
    )


def test_errors_derive_from_the_builtin_that_fits() -> None:
    import builtins

    import kvtier

    pairs = {
        kvtier.ConfigError: ValueError,
        kvtier.UsageError: ValueError,
        kvtier.TierIOError: OSError,
        kvtier.TimeoutError: builtins.TimeoutError,
        kvtier.UnsupportedError: NotImplementedError,
        kvtier.StoreBusyError: Exception,
        kvtier.ClosedError: Exception,
        kvtier.InternalError: Exception,
    }
    for error, builtin in pairs.items():
        assert issubclass(error, kvtier.KvtierError)
        assert issubclass(error, builtin)
    assert kvtier.TierIOError(5, "text").errno == 5
