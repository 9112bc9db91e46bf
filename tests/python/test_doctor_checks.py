"""What the doctor says of io_uring and of locked memory, on machines that are not this one."""

from __future__ import annotations

import errno
import resource
import sys

import pytest

from kvtier.cli import doctor_checks
from kvtier.cli.doctor_checks import Finding, check_machine
from kvtier.units import MIB


def finding(name: str) -> Finding:
    return next(it for it in check_machine() if it.name == name)


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS, errno.ENOMEM])
def test_a_refused_ring_is_named_with_errno_and_remedy(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    liburing = pytest.importorskip("kvtier.liburing")
    from kvtier.liburing.ring_errors import ring_error

    def refuse() -> None:
        raise ring_error(-code, "cannot set up io_uring")

    monkeypatch.setattr(liburing, "probe_opcodes", refuse)
    found = finding("io_uring")
    assert not found.is_good
    assert f"errno {code}" in found.text
    assert "threads are used instead; " in found.remedy
    assert found.remedy.removeprefix("threads are used instead; ")


def test_a_kernel_without_fixed_reads_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    liburing = pytest.importorskip("kvtier.liburing")
    probe = liburing.OpcodeProbe(opcodes=frozenset({"nop", "read"}), features=frozenset())
    monkeypatch.setattr(liburing, "probe_opcodes", lambda: probe)
    found = finding("io_uring")
    assert not found.is_good
    assert "lacks fsync, read_fixed, write, write_fixed" in found.text


def test_a_build_without_liburing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [it for it in sys.modules if it.startswith("kvtier.liburing")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kvtier.liburing._ring", None)
    found = finding("io_uring")
    assert not found.is_good
    assert "not built" in found.text
    assert found.remedy


@pytest.mark.parametrize(
    ("probe", "is_good", "text"),
    [
        ({"nodes": "0", "text": "one node", "refusal": ""}, True, "one node"),
        (
            {"nodes": "0-1", "text": "interleave 0-1", "refusal": ""},
            True,
            "nodes 0-1 usable, numa=auto: interleave 0-1",
        ),
        (
            {"nodes": "0-1", "text": "refused: mbind: x (errno=1)", "refusal": "mbind: x"},
            False,
            "nodes 0-1 usable, numa=auto: refused: mbind: x (errno=1)",
        ),
    ],
)
def test_numa_nodes_are_named_and_a_refused_mbind_has_a_remedy_f9(
    monkeypatch: pytest.MonkeyPatch, probe: dict[str, str], is_good: bool, text: str
) -> None:
    monkeypatch.setattr(doctor_checks._core, "probe_numa", lambda: probe)
    found = finding("numa")
    assert (found.is_good, found.text) == (is_good, text)
    assert ("CAP_SYS_NICE" in found.remedy) is not is_good


def test_the_memlock_limit_is_named_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 * MIB, 128 * MIB))
    monkeypatch.setattr(doctor_checks, "has_capability", lambda _: False)
    found = finding("memlock")
    assert not found.is_good
    assert "8 MiB" in found.text
    assert "128 MiB" in found.text
    assert "ulimit -l" in found.remedy
    monkeypatch.setattr(doctor_checks, "has_capability", lambda _: True)
    assert finding("memlock").is_good
