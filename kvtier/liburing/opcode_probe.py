"""Asks the kernel which io_uring opcodes and features it has. Thread-safe, stateless."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

from kvtier.liburing._ring import ffi, lib
from kvtier.liburing.ring_errors import ring_error

# In the order of the kernel's numbers; later ones are shown as numbers.
_OPCODE_NAMES: Final = (
    "nop readv writev fsync read_fixed write_fixed poll_add poll_remove sync_file_range sendmsg "
    "recvmsg timeout timeout_remove accept async_cancel link_timeout connect fallocate openat "
    "close files_update statx read write fadvise madvise send recv openat2 epoll_ctl splice "
    "provide_buffers remove_buffers tee shutdown renameat unlinkat mkdirat symlinkat linkat "
    "msg_ring fsetxattr setxattr fgetxattr getxattr socket uring_cmd send_zc sendmsg_zc "
    "read_multishot waitid futex_wait futex_wake futex_waitv fixed_fd_install ftruncate bind "
    "listen recv_zc epoll_wait readv_fixed writev_fixed pipe"
)
_FEATURE_NAMES: Final = (
    "single_mmap nodrop submit_stable rw_cur_pos cur_personality fast_poll poll_32bits "
    "sqpoll_nonfixed ext_arg native_workers rsrc_tags cqe_skip linked_file reg_reg_ring "
    "recvsend_bundle min_timeout rw_attr no_iowait"
)
_OPCODES: Final = tuple(_OPCODE_NAMES.split())
_FEATURES: Final = tuple(_FEATURE_NAMES.split())
_OPCODES_MAX: Final = 256
#: What kvtier's own ring uses.
NEEDED_OPCODES: Final = frozenset({"read_fixed", "write_fixed", "read", "write", "fsync"})


@dataclass(frozen=True, kw_only=True)
class OpcodeProbe:
    """What the running kernel offers."""

    opcodes: frozenset[str]
    """Names as in the kernel's header, in lower case; "opcode 70" for what is newer than this."""
    features: frozenset[str]

    @property
    def missing_opcodes(self) -> frozenset[str]:
        """Those of the needed ones that the kernel lacks."""
        return NEEDED_OPCODES - self.opcodes


def probe_opcodes() -> OpcodeProbe:
    """Sets up a small ring and asks. Raises OSError with cause and remedy where it is refused."""
    is_supported = bytearray(_OPCODES_MAX)
    features = ffi.new("uint32_t *")
    num_opcodes = lib.kvtier_probe(
        ffi.from_buffer("uint8_t[]", is_supported), _OPCODES_MAX, features
    )
    if num_opcodes < 0:
        raise ring_error(num_opcodes, "cannot set up io_uring")
    bits = cast("int", features[0])
    return OpcodeProbe(
        opcodes=frozenset(
            _OPCODES[i] if i < len(_OPCODES) else f"opcode {i}"
            for i in range(num_opcodes)
            if is_supported[i]
        ),
        features=frozenset(name for bit, name in enumerate(_FEATURES) if bits >> bit & 1),
    )
