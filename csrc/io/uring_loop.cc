// The ring's thread: gathers chunks, hands them to the kernel, reaps, publishes.
#include "io/uring_loop.h"

#ifdef KVTIER_HAVE_LIBURING

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "io/threads_io_engine.h"

namespace kvtier {
namespace {

// Completions of many small ops are reaped a few at a time, since each wake-up costs two switches
// of context; none waits longer for the others than this. Of long ones each is worth its own.
constexpr std::int64_t kReapPauseNs = 100 * kNsPerUs;
constexpr std::uint32_t kReapedAtOnceMax = 8;
constexpr std::uint64_t kSmallChunkBytes = 128 * 1024;

// Before the kernel is asked again when it had no memory for what it was given.
constexpr TimeNs kBusyPauseNs = 1 * kNsPerMs;

// When the ring refuses this many ops in a row, the threads do its work for a while.
constexpr std::uint32_t kRefusalsMax = 8;
constexpr TimeNs kRefusedPauseNs = 60 * kNsPerS;

// Set in the completion of the read of the wake-up descriptor; chunks have their index plus one.
constexpr std::uint64_t kWakeData = 0;

bool is_refusal(std::int32_t result) {
  switch (-result) {
    case EINVAL:
    case EOPNOTSUPP:
    case ENOSYS:
    case EPERM:
    case EACCES:
    case ENOMEM:
      return true;
    default:
      return false;
  }
}

std::size_t index_of(IoPriority priority) { return static_cast<std::size_t>(priority); }

std::uint32_t num_chunks_running(const UringState& state) {
  return state.options.queue_depth - static_cast<std::uint32_t>(state.free_chunks.size());
}

// With the mutex held: whether another chunk of a save may go to the kernel now.
bool has_room_for_save(const UringState& state) {
  const std::size_t load = index_of(IoPriority::kLoad);
  const bool has_loads =
      state.num_running[load] > 0 || state.open[load] || state.queue.has_waiting(IoPriority::kLoad);
  const std::uint32_t share = has_loads ? 16 : 4;
  const std::uint32_t num_max = std::max(1u, state.options.queue_depth / share);
  return state.num_running[index_of(IoPriority::kSave)] < num_max;
}

// What came of ops, on its way out of the ring's thread.
struct Ended {
  std::vector<IoOp> helper_ops;  // Not finished by the ring, or never for it.
  std::vector<IoResult> results;

  bool is_empty() const { return helper_ops.empty() && results.empty(); }
};

void append_ops(std::vector<IoOp>& target, IoBatch& batch) {
  for (IoOp& op : batch.ops) target.push_back(std::move(op));
}

// With the mutex held: the transfer of that priority that has a chunk to come, if any.
std::shared_ptr<ChunkedTransfer> next_transfer(UringState& state, IoPriority priority,
                                               bool is_ring_refused, Ended& ended) {
  std::shared_ptr<ChunkedTransfer>& open = state.open[index_of(priority)];
  if (open && open->has_next()) return open;
  open.reset();
  while (std::optional<IoBatch> batch = state.queue.take_from(priority)) {
    const bool is_transfer = batch->kind() == IoKind::kRead || batch->kind() == IoKind::kWrite;
    if (batch->kind() == IoKind::kTask || is_ring_refused) {
      append_ops(ended.helper_ops, *batch);
    } else if (is_transfer && batch->length_bytes == 0) {
      for (const IoOp& op : batch->ops) ended.results.push_back({op.user_data, Status::ok(), 0});
    } else {
      open = std::make_shared<ChunkedTransfer>(std::move(*batch));
      return open;
    }
  }
  return nullptr;
}

// With the mutex held: fills free chunks, loads first; returns those to hand to the kernel.
std::vector<std::uint32_t> gather(UringState& state, Ended& ended) {
  std::vector<std::uint32_t> filled;
  const bool is_ring_refused = state.clock.now_ns() < state.refused_until_ns;
  for (std::size_t index = 0; index < kNumIoPriorities; ++index) {
    const auto priority = static_cast<IoPriority>(index);
    while (!state.free_chunks.empty()) {
      if (priority == IoPriority::kSave && !has_room_for_save(state)) break;
      const auto transfer = next_transfer(state, priority, is_ring_refused, ended);
      if (!transfer) break;
      const std::uint32_t chunk_index = state.free_chunks.back();
      state.free_chunks.pop_back();
      UringChunk& running = state.chunks[chunk_index];
      running.transfer = transfer;
      if (transfer->batch().kind() == IoKind::kSync) {
        running.chunk = {};
        transfer->start_whole();
        state.open[index].reset();
      } else {
        transfer->take_next(running.chunk);
      }
      ++state.num_running[index];
      state.running_bytes += running.chunk.length_bytes;
      filled.push_back(chunk_index);
    }
  }
  return filled;
}

void prepare(UringState& state, std::uint32_t chunk_index) {
  io_uring& ring = state.ring->get();
  io_uring_sqe* entry = io_uring_get_sqe(&ring);
  KVTIER_CHECK(entry != nullptr);  // The ring has an entry for every chunk and the wake-up.
  UringChunk& running = state.chunks[chunk_index];
  const IoBatch& batch = running.transfer->batch();
  const auto& pieces = running.chunk.pieces;
  const std::uint64_t offset_bytes = running.chunk.offset_bytes;
  const auto length_bytes = static_cast<unsigned>(running.chunk.length_bytes);
  const bool is_read = batch.kind() == IoKind::kRead;
  if (batch.kind() == IoKind::kSync) {
    io_uring_prep_fsync(entry, batch.fd(), IORING_FSYNC_DATASYNC);
  } else if (pieces.size() > 1) {
    const auto num_pieces = static_cast<unsigned>(pieces.size());
    if (is_read) {
      io_uring_prep_readv(entry, batch.fd(), pieces.data(), num_pieces, offset_bytes);
    } else {
      io_uring_prep_writev(entry, batch.fd(), pieces.data(), num_pieces, offset_bytes);
    }
  } else if (const auto buffer = state.memory.find(ring, pieces.front())) {
    void* address = pieces.front().iov_base;
    if (is_read) {
      io_uring_prep_read_fixed(entry, batch.fd(), address, length_bytes, offset_bytes, *buffer);
    } else {
      io_uring_prep_write_fixed(entry, batch.fd(), address, length_bytes, offset_bytes, *buffer);
    }
  } else {
    void* address = pieces.front().iov_base;
    if (is_read) {
      io_uring_prep_read(entry, batch.fd(), address, length_bytes, offset_bytes);
    } else {
      io_uring_prep_write(entry, batch.fd(), address, length_bytes, offset_bytes);
    }
  }
  io_uring_sqe_set_data64(entry, std::uint64_t{chunk_index} + 1);
}

void arm_wake(UringState& state) {
  io_uring_sqe* entry = io_uring_get_sqe(&state.ring->get());
  KVTIER_CHECK(entry != nullptr);
  io_uring_prep_read(entry, state.wake_fd, &state.wake_buffer, sizeof state.wake_buffer, 0);
  io_uring_sqe_set_data64(entry, kWakeData);
}

// Counts what the ring refuses, whatever it is asked; true when it is given up for now.
bool note_refusal(UringState& state, std::int32_t result) {
  if (!is_refusal(result) || ++state.num_refusals < kRefusalsMax) return false;
  state.num_refusals = 0;
  state.refused_until_ns = state.clock.now_ns() + kRefusedPauseNs;
  return true;
}

void finish_chunk(UringState& state, std::uint32_t chunk_index, std::int32_t result, Ended& ended) {
  UringChunk& running = state.chunks[chunk_index];
  const std::shared_ptr<ChunkedTransfer> transfer = std::move(running.transfer);
  const bool is_whole =
      result >= 0 && static_cast<std::uint64_t>(result) == running.chunk.length_bytes;
  state.free_chunks.push_back(chunk_index);
  --state.num_running[index_of(transfer->batch().priority())];
  state.running_bytes -= running.chunk.length_bytes;
  transfer->finish(is_whole);
  if (is_whole) state.num_refusals = 0;
  if (note_refusal(state, result)) {
    const std::lock_guard<std::mutex> lock(state.mutex);
    state.note = "the ring refuses operations, threads do its work for a while: " +
                 std::generic_category().message(-result) + " (errno=" + std::to_string(-result) +
                 ")";
  }
  if (!transfer->is_ended()) return;
  if (!transfer->is_good()) {
    append_ops(ended.helper_ops, transfer->batch());
    return;
  }
  for (const IoOp& op : transfer->batch().ops) {
    ended.results.push_back({op.user_data, Status::ok(), op.length_bytes()});
  }
}

// Hands prepared entries to the kernel and waits for completions.
void enter_kernel(UringState& state) {
  io_uring& ring = state.ring->get();
  const std::uint32_t num_running = num_chunks_running(state);
  const bool is_small = state.running_bytes < std::uint64_t{num_running} * kSmallChunkBytes;
  const std::uint32_t num_wanted =
      is_small ? std::clamp(num_running / 8, 1u, kReapedAtOnceMax) : 1u;
  int result = 0;
  if (num_wanted == 1) {
    result = io_uring_submit_and_wait(&ring, 1);
  } else {
    __kernel_timespec pause{0, kReapPauseNs};
    io_uring_cqe* first = nullptr;
    result = io_uring_submit_and_wait_timeout(&ring, &first, num_wanted, &pause, nullptr);
  }
  // What was not taken stays in the queue for the next round.
  if (result < 0 && result != -ETIME && result != -EINTR) state.options.calls.pause(kBusyPauseNs);
}

void reap(UringState& state, Ended& ended) {
  io_uring& ring = state.ring->get();
  std::array<std::pair<std::uint64_t, std::int32_t>, 64> taken;
  while (true) {
    // Copied out first: finishing an op may need the entries of the queue for new ones.
    std::size_t num_taken = 0;
    unsigned head = 0;
    io_uring_cqe* completion = nullptr;
    io_uring_for_each_cqe(&ring, head, completion) {
      taken[num_taken++] = {completion->user_data, completion->res};
      if (num_taken == taken.size()) break;
    }
    if (num_taken == 0) return;
    io_uring_cq_advance(&ring, static_cast<unsigned>(num_taken));
    for (std::size_t i = 0; i < num_taken; ++i) {
      auto [data, result] = taken[i];
      if (data == kWakeData) {
        {
          const std::lock_guard<std::mutex> lock(state.mutex);
          state.is_wake_sent = false;
        }
        arm_wake(state);
        continue;
      }
      if (state.options.on_completion) result = state.options.on_completion(result);
      finish_chunk(state, static_cast<std::uint32_t>(data - 1), result, ended);
    }
  }
}

// Ops that the ring did not finish, or never takes. After stop() they are cancelled.
void hand_to_helper(UringState& state, std::vector<IoOp> ops, std::vector<IoResult>& results) {
  if (ops.empty()) return;
  std::vector<std::uint64_t> user_data;
  user_data.reserve(ops.size());
  for (const IoOp& op : ops) user_data.push_back(op.user_data);
  const Status submitted = state.helper->submit(std::move(ops));
  if (submitted.is_ok()) return;
  const bool is_closed = submitted.code() == StatusCode::kClosed;
  for (const std::uint64_t data : user_data) {
    results.push_back({data, is_closed ? cancelled_op() : submitted, 0});
  }
}

// After stop(): transfers of which chunks are still to come get no further.
void cut_short(UringState& state, Ended& ended) {
  for (auto& open : state.open) {
    if (!open) continue;
    open->cut_short();
    if (open->is_ended()) append_ops(ended.helper_ops, open->batch());
    open.reset();
  }
}

void run_loop(UringState& state) {
  arm_wake(state);
  Ended ended;
  std::unique_lock<std::mutex> lock(state.mutex);
  while (!state.is_abandoned) {
    const std::vector<std::uint32_t> filled = gather(state, ended);
    if (state.is_stopped) cut_short(state, ended);
    // After stop() nobody wakes the thread any more: only chunks under way end a wait.
    const bool is_last_round = state.is_stopped && num_chunks_running(state) == 0;
    if (is_last_round && ended.is_empty()) return;
    state.is_waiting = true;
    lock.unlock();
    if (!filled.empty() && !std::exchange(state.is_memory_ready, true)) {
      state.memory.init(state.ring->get());
    }
    for (const std::uint32_t chunk_index : filled) prepare(state, chunk_index);
    hand_to_helper(state, std::exchange(ended.helper_ops, {}), ended.results);
    if (!ended.results.empty()) {
      // The device works on while the callback runs.
      (void)io_uring_submit(&state.ring->get());
      lock.lock();
      publish_results(state, lock, std::exchange(ended.results, {}));
      lock.unlock();
    }
    if (!is_last_round) {
      enter_kernel(state);
      reap(state, ended);
    }
    lock.lock();
    state.is_waiting = false;
    if (state.note.empty()) state.note = state.memory.refusal();
  }
}

}  // namespace

UringState::UringState(Clock& used_clock, UringIoOptions used_options)
    : clock(used_clock),
      options(std::move(used_options)),
      helper(
          make_threads_io_engine(used_clock, ThreadsIoOptions{options.num_threads}, options.calls)),
      wake_fd(::eventfd(0, EFD_CLOEXEC)),
      chunks(options.queue_depth) {
  for (std::uint32_t i = 0; i < options.queue_depth; ++i) free_chunks.push_back(i);
}

UringState::~UringState() {
  if (wake_fd >= 0) ::close(wake_fd);
}

void publish_results(UringState& state, std::unique_lock<std::mutex>& lock,
                     std::vector<IoResult> results) {
  if (results.empty()) return;
  for (IoResult& result : results) state.results.push_back(std::move(result));
  if (state.is_abandoned || !state.on_result) return;
  ++state.num_callbacks;
  lock.unlock();
  state.on_result();
  lock.lock();
  --state.num_callbacks;
  if (state.num_callbacks == 0) state.thread_changed.notify_all();
}

void wake_ring_thread(UringState& state) {
  if (!state.is_waiting || state.is_wake_sent) return;
  state.is_wake_sent = true;
  const std::uint64_t one = 1;
  // Cannot fail but by overflow, and one is outstanding at most.
  (void)!::write(state.wake_fd, &one, sizeof one);
}

void run_ring_thread(const std::shared_ptr<UringState>& state, std::promise<Status> started) {
  auto ring = UringRing::create(state->options.queue_depth * 2);
  const bool is_started = ring.is_ok();
  if (is_started) {
    state->ring = std::move(ring).value();
    state->ring_fd.store(state->ring->fd(), std::memory_order_release);
  }
  started.set_value(is_started ? Status::ok() : ring.status());
  if (is_started) run_loop(*state);
  const std::lock_guard<std::mutex> lock(state->mutex);
  state->is_exited = true;
  state->thread_changed.notify_all();
}

}  // namespace kvtier

#endif  // KVTIER_HAVE_LIBURING
