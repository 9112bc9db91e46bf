"""liburing for measurements, `kvtier doctor` and tests: never on the store's own path.

The import fails with the reason where the build found no liburing, or cffi is missing.
"""

try:
    from kvtier.liburing import _ring
except ModuleNotFoundError as error:
    if error.name == "_cffi_backend":
        raise ImportError(
            "kvtier.liburing needs cffi, which is not installed: pip install cffi"
        ) from error
    raise ImportError(
        "kvtier.liburing was not built: no static liburing was found at build time (Debian and "
        "Ubuntu: apt-get install liburing-dev; elsewhere name its folder in KVTIER_LIBURING_DIR)"
    ) from error

from kvtier.liburing.opcode_probe import OpcodeProbe, probe_opcodes
from kvtier.liburing.ring import BatchResult, Ring, RingCompletion, RingOp

__all__ = [
    "BatchResult",
    "OpcodeProbe",
    "Ring",
    "RingCompletion",
    "RingOp",
    "probe_opcodes",
]

del _ring
