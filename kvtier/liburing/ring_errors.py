"""What the kernel means when it refuses io_uring, with the remedy. Reads /proc at each call."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

from kvtier.units import format_bytes

_PROC = Path("/proc")


def ring_error(negative_errno: int, action: str) -> OSError:
    """Returns the OSError of a call that answered -errno: action, system text, cause and remedy."""
    code = -negative_errno
    cause = explain_errno(code)
    text = f"{action}: {os.strerror(code)}" + (f": {cause}" if cause else "")
    return OSError(code, text)


def explain_errno(code: int, proc: Path = _PROC) -> str:
    """Returns cause and remedy of what io_uring calls usually fail with; "" for others."""
    if code == errno.EPERM:
        setting = io_uring_disabled(proc)
        if setting in ("1", "2"):
            return (
                f"kernel.io_uring_disabled={setting} refuses it; "
                "remedy: sysctl kernel.io_uring_disabled=0"
            )
        return (
            "a seccomp filter refuses it, as container engines do by default; "
            "remedy: a seccomp profile that allows io_uring_setup, io_uring_enter and "
            "io_uring_register"
        )
    if code == errno.ENOMEM:
        return (
            f"more memory would be locked than this user may ({memlock_text()}); "
            "remedy: raise the limit (ulimit -l, or LimitMEMLOCK= of the service)"
        )
    if code == errno.ENOSYS:
        return "this kernel has no io_uring; remedy: Linux 5.6 or later, built with CONFIG_IO_URING"
    if code == errno.EOPNOTSUPP:
        return "this kernel cannot be asked for its opcodes; remedy: Linux 5.6 or later"
    return ""


def memlock_text() -> str:
    """Returns how much memory this process may lock: "8 MiB", "unlimited"."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "unlimited" if soft == resource.RLIM_INFINITY else format_bytes(soft)
    return f"memlock limit {limit}"


def io_uring_disabled(proc: Path = _PROC) -> str:
    """Returns the sysctl of that name; "" where the kernel has none."""
    try:
        return (proc / "sys/kernel/io_uring_disabled").read_text(encoding="ascii").strip()
    except OSError:
        return ""
