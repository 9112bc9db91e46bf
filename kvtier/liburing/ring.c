/* Thin calls on liburing for kvtier.liburing, and one hot loop that keeps a ring full, so that a
 * measured rate is the device's and not Python's. Every function returns 0 or more, or -errno.
 * A ring is used by one thread at a time; the GIL is released in all of them.
 */

#include <errno.h>
#include <liburing.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

typedef struct {
  int is_write;
  int fd;            /* With is_fd_fixed: its index among the registered files. */
  int is_fd_fixed;
  int buffer_index;  /* Of the registered buffers; negative: a plain transfer. */
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
  const int32_t *fds;             /* [num_ops] */
  const uint64_t *offsets_bytes;  /* [num_ops] */
  uint32_t num_buffers;           /* At least the depth: each op in flight has one of its own. */
  const uint64_t *buffers;        /* [num_buffers], op_bytes each; taken and given back in turn. */
  int64_t time_limit_ns;
  /* Filled in. */
  uint32_t num_done;
  int64_t elapsed_ns;
  int64_t failed_op;    /* -1: none. */
  int32_t failed_result;
} kvtier_batch;

typedef struct {
  struct io_uring ring;
  uint32_t depth;
  uint32_t num_in_flight;
} kvtier_ring;

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int open_ring(struct io_uring *ring, uint32_t depth) {
  /* Completions then interrupt nobody; kernels before 5.19 do not know the flag. */
  int status = io_uring_queue_init(depth, ring, IORING_SETUP_COOP_TASKRUN);
  return status == -EINVAL ? io_uring_queue_init(depth, ring, 0) : status;
}

int kvtier_probe(uint8_t *is_supported, uint32_t num_opcodes_max, uint32_t *features) {
  struct io_uring ring;
  int status = open_ring(&ring, 2);
  if (status < 0) return status;
  *features = ring.features;
  struct io_uring_probe *probe = io_uring_get_probe_ring(&ring);
  io_uring_queue_exit(&ring);
  if (probe == NULL) return -EOPNOTSUPP;
  int num_opcodes = 0;
  for (uint32_t i = 0; i < probe->ops_len && i < num_opcodes_max; ++i) {
    is_supported[i] = (probe->ops[i].flags & IO_URING_OP_SUPPORTED) != 0;
    num_opcodes = (int)i + 1;
  }
  io_uring_free_probe(probe);
  return num_opcodes;
}

kvtier_ring *kvtier_open(uint32_t depth, int *status) {
  kvtier_ring *opened = calloc(1, sizeof(kvtier_ring));
  *status = opened == NULL ? -ENOMEM : open_ring(&opened->ring, depth);
  if (*status < 0) {
    free(opened);
    return NULL;
  }
  opened->depth = depth;
  return opened;
}

uint32_t kvtier_num_in_flight(const kvtier_ring *ring) { return ring->num_in_flight; }

/* Waits for what is in flight: the kernel may still write to the caller's buffers. */
void kvtier_close(kvtier_ring *ring) {
  while (ring->num_in_flight > 0) {
    struct io_uring_cqe *cqe;
    int status = io_uring_wait_cqe(&ring->ring, &cqe);
    if (status == -EINTR) continue;
    if (status < 0) break;
    io_uring_cqe_seen(&ring->ring, cqe);
    --ring->num_in_flight;
  }
  io_uring_queue_exit(&ring->ring);
  free(ring);
}

int kvtier_register_buffers(kvtier_ring *ring, const uint64_t *addresses, const uint64_t *lengths,
                            uint32_t num_buffers) {
  struct iovec *pieces = calloc(num_buffers, sizeof(struct iovec));
  if (pieces == NULL) return -ENOMEM;
  for (uint32_t i = 0; i < num_buffers; ++i) {
    pieces[i].iov_base = (void *)(uintptr_t)addresses[i];
    pieces[i].iov_len = lengths[i];
  }
  int status = io_uring_register_buffers(&ring->ring, pieces, num_buffers);
  free(pieces);
  return status;
}

int kvtier_register_files(kvtier_ring *ring, const int32_t *fds, uint32_t num_files) {
  return io_uring_register_files(&ring->ring, fds, num_files);
}

static void prepare(struct io_uring_sqe *sqe, const kvtier_op *op) {
  void *address = (void *)(uintptr_t)op->address;
  if (op->buffer_index >= 0 && op->is_write) {
    io_uring_prep_write_fixed(sqe, op->fd, address, op->length_bytes, op->offset_bytes,
                              op->buffer_index);
  } else if (op->buffer_index >= 0) {
    io_uring_prep_read_fixed(sqe, op->fd, address, op->length_bytes, op->offset_bytes,
                             op->buffer_index);
  } else if (op->is_write) {
    io_uring_prep_write(sqe, op->fd, address, op->length_bytes, op->offset_bytes);
  } else {
    io_uring_prep_read(sqe, op->fd, address, op->length_bytes, op->offset_bytes);
  }
  if (op->is_fd_fixed) sqe->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data64(sqe, op->user_data);
}

/* Hands everything prepared to the kernel; counts what it took. */
static int submit_all(kvtier_ring *ring, uint32_t num_wanted) {
  while (io_uring_sq_ready(&ring->ring) > 0) {
    int num_taken = io_uring_submit_and_wait(&ring->ring, num_wanted);
    if (num_taken == -EINTR || num_taken == -EAGAIN || num_taken == -EBUSY) continue;
    if (num_taken < 0) return num_taken;
    ring->num_in_flight += (uint32_t)num_taken;
  }
  return 0;
}

/* Takes all ops or none (-EBUSY: they and those in flight are more than the ring is deep). */
int kvtier_submit(kvtier_ring *ring, const kvtier_op *ops, uint32_t num_ops) {
  if (num_ops > ring->depth - ring->num_in_flight) return -EBUSY;
  for (uint32_t i = 0; i < num_ops; ++i) prepare(io_uring_get_sqe(&ring->ring), &ops[i]);
  return submit_all(ring, 0);
}

/* Waits for at least num_min completions, at most num_max are given. */
int kvtier_reap(kvtier_ring *ring, kvtier_completion *completions, uint32_t num_min,
                uint32_t num_max) {
  uint32_t num_reaped = 0;
  while (num_reaped < num_max && ring->num_in_flight > 0) {
    struct io_uring_cqe *cqe;
    int status = num_reaped < num_min ? io_uring_wait_cqe(&ring->ring, &cqe)
                                      : io_uring_peek_cqe(&ring->ring, &cqe);
    if (status == -EINTR) continue;
    if (status == -EAGAIN) break;
    if (status < 0) return status;
    completions[num_reaped].user_data = io_uring_cqe_get_data64(cqe);
    completions[num_reaped].result = cqe->res;
    ++num_reaped;
    io_uring_cqe_seen(&ring->ring, cqe);
    --ring->num_in_flight;
  }
  return (int)num_reaped;
}

static void prepare_batch_op(kvtier_ring *ring, const kvtier_batch *batch, uint32_t op_index,
                             uint32_t buffer_index) {
  const kvtier_op op = {
      .is_write = batch->is_write,
      .fd = batch->fds[op_index],
      .is_fd_fixed = batch->is_fd_fixed,
      .buffer_index = batch->is_buffer_fixed ? (int)buffer_index : -1,
      .address = batch->buffers[buffer_index],
      .offset_bytes = batch->offsets_bytes[op_index],
      .length_bytes = batch->op_bytes,
      .user_data = ((uint64_t)buffer_index << 32) | op_index,
  };
  prepare(io_uring_get_sqe(&ring->ring), &op);
}

/* Takes what has completed; gives buffers back to the end of the line `free_buffers`. */
static int reap_batch(kvtier_ring *ring, kvtier_batch *batch, uint32_t *free_buffers,
                      uint64_t *num_freed) {
  struct io_uring_cqe *cqe;
  unsigned head;
  unsigned num_seen = 0;
  io_uring_for_each_cqe(&ring->ring, head, cqe) {
    const uint64_t data = io_uring_cqe_get_data64(cqe);
    free_buffers[(*num_freed)++ % batch->num_buffers] = (uint32_t)(data >> 32);
    if (cqe->res != (int32_t)batch->op_bytes && batch->failed_op < 0) {
      batch->failed_op = (int64_t)(data & 0xffffffff);
      batch->failed_result = cqe->res;
    }
    ++num_seen;
  }
  io_uring_cq_advance(&ring->ring, num_seen);
  ring->num_in_flight -= num_seen;
  return (int)num_seen;
}

/* Runs the ops in order with `depth` of them in flight until all are done, one failed or the time
 * is over; what is in flight then is waited for. Requires an idle ring.
 */
int kvtier_run_batch(kvtier_ring *ring, kvtier_batch *batch) {
  if (ring->num_in_flight > 0) return -EBUSY;
  if (batch->num_buffers < ring->depth && batch->num_buffers < batch->num_ops) return -EINVAL;
  uint32_t *free_buffers = malloc(batch->num_buffers * sizeof(uint32_t));
  if (free_buffers == NULL) return -ENOMEM;
  for (uint32_t i = 0; i < batch->num_buffers; ++i) free_buffers[i] = i;
  uint64_t num_freed = batch->num_buffers;
  uint32_t num_sent = 0;
  int status = 0;
  batch->num_done = 0;
  batch->failed_op = -1;
  batch->failed_result = 0;
  const int64_t started_ns = now_ns();
  int is_ending = batch->time_limit_ns <= 0;
  while (ring->num_in_flight > 0 || (!is_ending && num_sent < batch->num_ops)) {
    uint32_t num_prepared = 0;
    while (!is_ending && num_sent < batch->num_ops &&
           ring->num_in_flight + num_prepared < ring->depth) {
      prepare_batch_op(ring, batch, num_sent, free_buffers[num_sent % batch->num_buffers]);
      ++num_sent;
      ++num_prepared;
    }
    /* One call hands over the new ones and waits for the next to end. */
    status = num_prepared > 0 ? submit_all(ring, 1) : io_uring_submit_and_wait(&ring->ring, 1);
    if (status == -EINTR) status = 0;
    if (status < 0) break;
    batch->num_done += (uint32_t)reap_batch(ring, batch, free_buffers, &num_freed);
    is_ending = is_ending || batch->failed_op >= 0 ||
                now_ns() - started_ns >= batch->time_limit_ns;
  }
  batch->elapsed_ns = now_ns() - started_ns;
  free(free_buffers);
  return status < 0 ? status : 0;
}
