// Staging buffers in order of arrival. Guarded by the store's mutex.
#include "store/staging_pool.h"

#include <algorithm>

namespace kvtier::store {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

}  // namespace

StagingPool::StagingPool(std::shared_ptr<Arena> arena)
    : arena_(std::move(arena)), extents_(arena_->num_bytes(), kPageBytes) {}

void StagingPool::prefault(const std::shared_ptr<Executor>& executor, std::uint64_t ahead_bytes) {
  if (!prefaulter_) prefaulter_.emplace(executor, arena_, ahead_bytes);
}

std::uint64_t StagingPool::enter_line() {
  line_.push_back(ticket_next_);
  return ticket_next_++;
}

void StagingPool::leave_line(std::uint64_t ticket) { std::erase(line_, ticket); }

std::optional<std::span<std::byte>> StagingPool::reserve(std::uint64_t ticket,
                                                         std::uint64_t num_bytes) {
  const bool is_first = line_.empty() ? ticket == 0 : line_.front() == ticket;
  if (!is_first) return std::nullopt;
  const auto offset_bytes = extents_.allocate(num_bytes);
  if (!offset_bytes) return std::nullopt;
  if (prefaulter_) prefaulter_->note_used(*offset_bytes + num_bytes);
  return arena_->bytes(*offset_bytes, num_bytes);
}

void StagingPool::release(std::span<std::byte> buffer) {
  extents_.free(static_cast<std::uint64_t>(buffer.data() - arena_->base()), buffer.size());
}

bool StagingPool::may_hold_more(std::uint64_t held_bytes, std::uint64_t num_bytes) const {
  if (held_bytes == 0) return true;
  const std::uint64_t window_bytes = capacity_bytes() / 4;
  // What it counts as held may have been given back by its writes.
  const bool is_alone = used_bytes() <= held_bytes;
  const bool is_pool_idle = used_bytes() + num_bytes <= capacity_bytes() / 2;
  // A quarter must be room for a block, or the next call would wait for this one.
  const bool is_room_left = num_bytes <= window_bytes;
  const std::uint64_t num_windows = is_alone && is_room_left ? 3 : is_pool_idle ? 2 : 1;
  return held_bytes + num_bytes <= num_windows * window_bytes;
}

}  // namespace kvtier::store
