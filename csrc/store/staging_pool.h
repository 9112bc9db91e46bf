// StagingPool: short-lived buffers for loads and saves that have no host slot, handed out in order
// of arrival. Guarded by the store's mutex; waiting is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>

#include "memory/arena.h"
#include "memory/extent_allocator.h"
#include "store/prefaulter.h"

namespace kvtier::store {

class StagingPool {
 public:
  explicit StagingPool(std::shared_ptr<Arena> arena);

  /// From now on `ahead_bytes` of memory are provided beyond what was in use at some time. The
  /// first call counts.
  void prefault(const std::shared_ptr<Executor>& executor, std::uint64_t ahead_bytes);

  /// Joins the line. Who holds no buffer yet must stand in line; only the first may reserve then.
  std::uint64_t enter_line();
  void leave_line(std::uint64_t ticket);
  bool is_first(std::uint64_t ticket) const { return !line_.empty() && line_.front() == ticket; }

  /// A buffer of `num_bytes`, page aligned. `ticket` 0: for those who hold some already; refused
  /// while anybody stands in line. Nothing: wait, then try again.
  std::optional<std::span<std::byte>> reserve(std::uint64_t ticket, std::uint64_t num_bytes);
  void release(std::span<std::byte> buffer);

  std::uint64_t capacity_bytes() const { return extents_.capacity_bytes(); }
  std::uint64_t used_bytes() const { return extents_.capacity_bytes() - extents_.free_bytes(); }
  /// Whether a call that holds `held_bytes` may take a buffer more: within its window, a quarter of
  /// the pool, or further ones while the pool is idle otherwise, so that a quarter is left for who
  /// comes next. Its first is always allowed.
  bool may_hold_more(std::uint64_t held_bytes, std::uint64_t num_bytes) const;
  const std::shared_ptr<Arena>& arena() const { return arena_; }

 private:
  const std::shared_ptr<Arena> arena_;  // Shared with those who page-locked it.
  ExtentAllocator extents_;
  std::optional<Prefaulter> prefaulter_;  // None: memory is provided when it is first touched.
  std::deque<std::uint64_t> line_;
  std::uint64_t ticket_next_ = 1;
};

}  // namespace kvtier::store
