// What the ring's thread and the engine before it share, and the thread's work. Each member says
// whose it is.
#pragma once

#ifdef KVTIER_HAVE_LIBURING

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "io/chunked_transfer.h"
#include "io/io_engine.h"
#include "io/io_op_queue.h"
#include "io/registered_memory.h"
#include "io/uring_io_engine.h"
#include "io/uring_ring.h"

namespace kvtier {

struct UringChunk {
  std::shared_ptr<ChunkedTransfer> transfer;
  ChunkedTransfer::Chunk chunk;
};

struct UringState {
  UringState(Clock& used_clock, UringIoOptions used_options);
  ~UringState();
  UringState(const UringState&) = delete;
  UringState& operator=(const UringState&) = delete;

  // Constant after construction, but for on_result: constant after the first submit.
  Clock& clock;
  const UringIoOptions options;
  const std::unique_ptr<IoEngine> helper;
  const int wake_fd;
  std::function<void()> on_result;

  // Guarded by mutex.
  std::mutex mutex;
  std::condition_variable thread_changed;
  IoOpQueue queue{IoLimits{}};
  std::vector<IoResult> results;
  std::string note;
  std::size_t num_callbacks = 0;
  bool is_waiting = false;  // The thread is, or soon will be, in the kernel.
  bool is_wake_sent = false;
  bool is_stopped = false;
  bool is_abandoned = false;  // The engine gave up waiting: nobody is called any more.
  bool is_exited = false;

  // Atomic, for a forked child, which may take no lock: release when set, acquire there.
  std::atomic<int> ring_fd{-1};

  // The ring thread's own; `memory` is filled before the first submit.
  std::unique_ptr<UringRing> ring;
  RegisteredMemory memory;
  bool is_memory_ready = false;
  std::vector<UringChunk> chunks;
  std::vector<std::uint32_t> free_chunks;
  std::array<std::shared_ptr<ChunkedTransfer>, kNumIoPriorities> open;  // With chunks to come.
  std::array<std::uint32_t, kNumIoPriorities> num_running{};
  std::uint64_t running_bytes = 0;
  std::uint64_t wake_buffer = 0;
  std::uint32_t num_refusals = 0;
  TimeNs refused_until_ns = 0;
};

/// Publishes with `lock` (on the state's mutex) held; returns with it held, having called back
/// without it.
void publish_results(UringState& state, std::unique_lock<std::mutex>& lock,
                     std::vector<IoResult> results);
/// Makes the thread look at the queue and the flags. With the mutex held.
void wake_ring_thread(UringState& state);
/// The thread: makes the ring, says how that went, and serves it until stop().
void run_ring_thread(const std::shared_ptr<UringState>& state, std::promise<Status> started);

}  // namespace kvtier

#endif  // KVTIER_HAVE_LIBURING
