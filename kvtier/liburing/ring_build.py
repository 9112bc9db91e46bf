"""Describes the extension kvtier.liburing._ring to the build. Run by setup.py through its path, so
it imports nothing of kvtier; stateless.
"""

from __future__ import annotations

from pathlib import Path

import cffi  # type: ignore[import-untyped]

MODULE_NAME = "kvtier.liburing._ring"
SOURCE = Path(__file__).with_name("ring.c")

DECLARATIONS = """
typedef struct {
  int is_write;
  int fd;
  int is_fd_fixed;
  int buffer_index;
  uint64_t address;
  uint64_t offset_bytes;
  uint32_t length_bytes;
  uint64_t user_data;
} kvtier_op;

typedef struct {
  uint64_t user_data;
  int32_t result;
} kvtier_completion;

typedef struct {
  int is_write;
  int is_fd_fixed;
  int is_buffer_fixed;
  uint32_t op_bytes;
  uint32_t num_ops;
  const int32_t *fds;
  const uint64_t *offsets_bytes;
  uint32_t num_buffers;
  const uint64_t *buffers;
  int64_t time_limit_ns;
  uint32_t num_done;
  int64_t elapsed_ns;
  int64_t failed_op;
  int32_t failed_result;
} kvtier_batch;

typedef struct { ...; } kvtier_ring;

int kvtier_probe(uint8_t *is_supported, uint32_t num_opcodes_max, uint32_t *features);
kvtier_ring *kvtier_open(uint32_t depth, int *status);
void kvtier_close(kvtier_ring *ring);
uint32_t kvtier_num_in_flight(const kvtier_ring *ring);
int kvtier_register_buffers(kvtier_ring *ring, const uint64_t *addresses, const uint64_t *lengths,
                            uint32_t num_buffers);
int kvtier_register_files(kvtier_ring *ring, const int32_t *fds, uint32_t num_files);
int kvtier_submit(kvtier_ring *ring, const kvtier_op *ops, uint32_t num_ops);
int kvtier_reap(kvtier_ring *ring, kvtier_completion *completions, uint32_t num_min,
                uint32_t num_max);
int kvtier_run_batch(kvtier_ring *ring, kvtier_batch *batch);
"""


def write_c_source(path: Path) -> None:
    """Writes the extension's C source; leaves the file alone when it would stay the same."""
    builder = cffi.FFI()
    builder.cdef(DECLARATIONS)
    builder.set_source(MODULE_NAME, SOURCE.read_text(encoding="utf-8"))
    path.parent.mkdir(parents=True, exist_ok=True)
    builder.emit_c_code(str(path))
