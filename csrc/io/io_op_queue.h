// IoOpQueue: waiting ops by priority, neighbours among them joined to one transfer, and which of
// them a free thread may take. Not thread-safe: guarded by its owner's mutex.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "io/io_engine.h"

namespace kvtier {

/// What goes to the kernel as one transfer: neighbours in one file in order, or a single op of any
/// kind. Never empty.
struct IoBatch {
  std::vector<IoOp> ops;
  std::uint64_t length_bytes = 0;

  IoKind kind() const { return ops.front().kind; }
  IoPriority priority() const { return ops.front().priority; }
  int fd() const { return ops.front().fd; }
  std::uint64_t offset_bytes() const { return ops.front().offset_bytes; }
  std::vector<std::span<std::byte>> pieces() const;
};

/// Neighbours are joined up to this length: beyond it a device gains nothing, and a load behind a
/// save waits longer.
inline constexpr std::uint64_t kBatchBytesMax = 1ull << 20;

/// How many ops of each kind may run at a time.
struct IoLimits {
  std::uint32_t num_saves_max = 1;
  std::uint32_t num_background_max = 1;  // Saves and control together.
};

/// The result of ops that stop() found waiting.
Status cancelled_op();

class IoOpQueue {
 public:
  explicit IoOpQueue(const IoLimits& limits) : limits_(limits) {}

  void push(IoOp op);
  /// The next batch by priority whose kind of work is not at its limit; it counts as running until
  /// `finish`.
  std::optional<IoBatch> take();
  /// The next batch of that priority, limits or not; it does not count as running.
  std::optional<IoBatch> take_from(IoPriority priority);
  void finish(IoPriority priority);
  bool is_empty() const;
  bool has_waiting(IoPriority priority) const;
  /// Takes out everything that waits.
  std::deque<IoOp> drain();

 private:
  bool has_room(IoPriority priority) const;

  // Constant after construction.
  const IoLimits limits_;
  // Guarded by the owner's mutex.
  std::array<std::deque<IoOp>, kNumIoPriorities> waiting_;
  std::array<std::uint32_t, kNumIoPriorities> num_running_{};
};

}  // namespace kvtier
