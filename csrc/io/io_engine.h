// IoEngine: asynchronous reads, writes and syncs of open files behind one interface (threads,
// io_uring, simulated disk). Thread-safe: any thread may submit, poll and stop.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace kvtier {

enum class IoKind : std::uint8_t {
  kRead,
  kWrite,
  kSync,  // fdatasync of `fd`.
  kTask,  // Runs `task` where blocking is allowed (allocate, remove, ...).
};

/// Which waiting op goes first. Within one priority: in order of submission.
enum class IoPriority : std::uint8_t {
  kLoad = 0,     // Somebody waits for these bytes.
  kControl = 1,  // Slot tables, syncs, tasks.
  kSave = 2,     // Write-behind.
};
inline constexpr std::size_t kNumIoPriorities = 3;

struct IoOp {
  IoKind kind = IoKind::kRead;
  IoPriority priority = IoPriority::kLoad;
  int fd = -1;
  std::uint64_t offset_bytes = 0;
  /// Read or written in this order, contiguous in the file. They belong to the engine until the
  /// op's result was polled. With direct I/O the caller keeps addresses, lengths and offset
  /// aligned.
  std::vector<std::span<std::byte>> pieces;
  std::function<Status()> task;
  /// Comes back in the result; means nothing to the engine.
  std::uint64_t user_data = 0;

  std::uint64_t length_bytes() const;
};

struct IoResult {
  std::uint64_t user_data = 0;
  /// Ok only when every byte was transferred. kIoError with os_errno 0: the file ended early.
  Status status;
  std::uint64_t transferred_bytes = 0;
};

struct IoEngineInfo {
  std::string name;  // "threads", "uring", "simulated"
  std::uint32_t queue_depth_max = 0;
  std::string note;  // Why something is less than best; empty when nothing is.
};

class IoEngine {
 public:
  virtual ~IoEngine() = default;

  /// Queues ops; each gives exactly one result. Does not block.
  /// Returns kExhausted (more than kQueuedOpsMax would wait; none was taken), kClosed,
  /// kInvalidArgument (negative fd, offset beyond 2^63, task missing).
  Status submit(std::vector<IoOp> ops);

  /// Appends every finished op to `results`, in any order; returns their number. Does not block.
  std::size_t poll(std::vector<IoResult>& results);

  /// `on_result` is called, from any thread and without locks, after results became pollable.
  /// Set once, before the first submit.
  void set_on_result(std::function<void()> on_result);

  /// Memory that most ops will read into or write from, and that stays mapped until stop() returned
  /// true. A hint: an engine that can prepares it (a ring registers it, piece by piece at first
  /// use, which page-locks the piece). Before the first submit.
  void register_memory(std::span<std::byte> memory) { do_register_memory(memory); }

  /// In a forked child: closes descriptors without taking a lock. Nothing else works afterwards.
  void close_after_fork() { do_close_after_fork(); }

  /// Refuses new ops, turns queued ones into kCancelled results, and waits until the running ones
  /// have ended or `deadline_ns`. Returns false when the kernel still holds some: their buffers
  /// must then stay mapped for the rest of the process. Idempotent.
  bool stop(TimeNs deadline_ns);

  /// Ops submitted whose results have not been polled.
  std::size_t num_in_flight() const { return num_in_flight_.load(std::memory_order_acquire); }
  IoEngineInfo info() const { return do_info(); }

  static constexpr std::size_t kQueuedOpsMax = 65536;

 private:
  virtual void do_submit(std::vector<IoOp> ops) = 0;
  virtual std::size_t do_poll(std::vector<IoResult>& results) = 0;
  virtual void do_set_on_result(std::function<void()> on_result) = 0;
  virtual bool do_stop(TimeNs deadline_ns) = 0;
  virtual IoEngineInfo do_info() const = 0;
  virtual void do_register_memory(std::span<std::byte>) {}
  virtual void do_close_after_fork() {}

  // Atomics: num_in_flight_ acquire/release, so that a reader of 0 sees the effects of all ops.
  std::atomic<std::size_t> num_in_flight_{0};
  std::atomic<bool> is_stopped_{false};
};

struct ThreadsIoOptions {
  std::uint32_t num_threads = 8;
};

/// pread/pwrite on up to `num_threads` threads named "kvtier-io", which start as ops need them.
/// Neighbours in a file that wait one behind the other become one call. Retries EINTR and EAGAIN,
/// continues short transfers, splits at 0x7ffff000 bytes and IOV_MAX pieces. Threads stuck in the
/// kernel at stop() are detached; they own what they touch.
std::unique_ptr<IoEngine> make_threads_io_engine(Clock& clock, const ThreadsIoOptions& options);

}  // namespace kvtier
