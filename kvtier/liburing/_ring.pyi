"""Types of the cffi extension, as far as kvtier.liburing uses it. See ring.c for meanings."""

from typing import Protocol

class CData(Protocol):
    """A C value: its fields are attributes."""

    def __getitem__(self, index: int) -> CData: ...

class Op(CData, Protocol):
    is_write: int
    fd: int
    is_fd_fixed: int
    buffer_index: int
    address: int
    offset_bytes: int
    length_bytes: int
    user_data: int

class Completion(CData, Protocol):
    user_data: int
    result: int

class Batch(CData, Protocol):
    is_write: int
    is_fd_fixed: int
    is_buffer_fixed: int
    op_bytes: int
    num_ops: int
    fds: CData
    offsets_bytes: CData
    num_buffers: int
    buffers: CData
    time_limit_ns: int
    num_done: int
    elapsed_ns: int
    failed_op: int
    failed_result: int

class _Ffi:
    NULL: CData
    def new(self, declaration: str, init: object = None) -> CData: ...
    def from_buffer(self, declaration: str, buffer: object) -> CData: ...

class _Lib:
    def kvtier_probe(self, is_supported: CData, num_opcodes_max: int, features: CData) -> int: ...
    def kvtier_open(self, depth: int, status: CData) -> CData: ...
    def kvtier_close(self, ring: CData) -> None: ...
    def kvtier_num_in_flight(self, ring: CData) -> int: ...
    def kvtier_register_buffers(
        self, ring: CData, addresses: CData, lengths: CData, num_buffers: int
    ) -> int: ...
    def kvtier_register_files(self, ring: CData, fds: CData, num_files: int) -> int: ...
    def kvtier_submit(self, ring: CData, ops: CData, num_ops: int) -> int: ...
    def kvtier_reap(self, ring: CData, completions: CData, num_min: int, num_max: int) -> int: ...
    def kvtier_run_batch(self, ring: CData, batch: CData) -> int: ...

ffi: _Ffi
lib: _Lib
