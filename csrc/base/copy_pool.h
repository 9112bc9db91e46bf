// CopyPool: a few threads that copy and hash blocks: steps of jobs, and shares of one large copy.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"

namespace kvtier {

/// Which waiting step goes first; within one priority: in order of posting.
enum class StepPriority : std::uint8_t {
  kLoad = 0,      // Somebody waits for these bytes.
  kSave = 1,      // A put.
  kPrefetch = 2,  // Nobody has asked yet.
};
inline constexpr std::size_t kNumStepPriorities = 3;

class CopyPool {
 public:
  using Step = std::function<void()>;
  using Piece = std::function<void(std::size_t piece_index)>;

  /// One CPU is left to whoever uses the store: usable_cpus() - 1. With 0 the owner's thread does
  /// the work by run_one(): a thread more would only wait for the CPU.
  static std::uint32_t default_num_threads();

  /// Threads, named "kvtier-copy", start with the first use. `num_threads` 0: the default.
  explicit CopyPool(std::uint32_t num_threads);
  ~CopyPool();
  CopyPool(const CopyPool&) = delete;
  CopyPool& operator=(const CopyPool&) = delete;

  /// Queues `step`, which must not throw. Every eighth step a lower priority goes first,
  /// so that none starves. False: there is no thread; the step waits for run_one().
  bool post(StepPriority priority, Step step);
  /// Runs one waiting step in this thread, for a pool that has no thread; false: it has, or none
  /// waits.
  bool run_one();

  /// Runs every piece once and returns when all have ended; the caller takes part. Threads that
  /// are free help, so that caller and helpers are at most num_threads() threads: with one, the
  /// caller does it alone. Throws what a piece threw first.
  void split(std::size_t num_pieces, const Piece& run_piece);

  /// Drops waiting steps and joins the threads; those that do not end within `grace_ns` are let go
  /// (false). Idempotent. In a forked child: does nothing.
  bool stop(TimeNs grace_ns);

  std::uint32_t num_threads() const;

 private:
  struct State;
  // The threads own it as well: one that is stuck outlives the pool.
  const std::shared_ptr<State> state_;
};

}  // namespace kvtier
