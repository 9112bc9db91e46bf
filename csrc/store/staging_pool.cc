// Staging buffers in order of arrival. Guarded by the store's mutex.
#include "store/staging_pool.h"

#include <algorithm>

namespace kvtier::store {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

}  // namespace

StagingPool::StagingPool(std::shared_ptr<Arena> arena)
    : arena_(std::move(arena)), extents_(arena_->num_bytes(), kPageBytes) {}

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
  return arena_->bytes(*offset_bytes, num_bytes);
}

void StagingPool::release(std::span<std::byte> buffer) {
  extents_.free(static_cast<std::uint64_t>(buffer.data() - arena_->base()), buffer.size());
}

}  // namespace kvtier::store
