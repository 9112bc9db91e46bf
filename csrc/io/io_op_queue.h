// IoOpQueue: waiting ops by priority, and which of them a free thread may take. Not thread-safe:
// guarded by its owner's mutex.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>

#include "io/io_engine.h"

namespace kvtier {

class IoOpQueue {
 public:
  explicit IoOpQueue(std::uint32_t num_threads);

  void push(IoOp op);
  /// The next op by priority whose kind of work is not at its limit of threads; it counts as
  /// running until `finish`.
  std::optional<IoOp> take();
  void finish(IoPriority priority);
  /// Takes out everything that waits.
  std::deque<IoOp> drain();

 private:
  bool has_room(IoPriority priority) const;

  // Constant after construction.
  std::uint32_t num_save_threads_max_;
  std::uint32_t num_background_threads_max_;
  // Guarded by the owner's mutex.
  std::array<std::deque<IoOp>, kNumIoPriorities> waiting_;
  std::array<std::uint32_t, kNumIoPriorities> num_running_{};
};

}  // namespace kvtier
