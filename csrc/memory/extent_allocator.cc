// First fit with coalescing. Not thread-safe.
#include "memory/extent_allocator.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "base/check.h"

namespace kvtier {

ExtentAllocator::ExtentAllocator(std::uint64_t capacity_bytes, std::uint64_t unit_bytes)
    : capacity_bytes_(capacity_bytes), unit_bytes_(unit_bytes), free_bytes_(0) {
  KVTIER_CHECK(std::has_single_bit(unit_bytes));
  capacity_bytes_ = capacity_bytes / unit_bytes * unit_bytes;
  free_bytes_ = capacity_bytes_;
  if (capacity_bytes_ > 0) free_extents_.emplace(0, capacity_bytes_);
}

std::optional<std::uint64_t> ExtentAllocator::allocate(std::uint64_t length_bytes) {
  KVTIER_CHECK(length_bytes > 0);
  if (length_bytes > free_bytes_) return std::nullopt;
  const std::uint64_t need_bytes = round_up(length_bytes);
  const auto fit = std::find_if(free_extents_.begin(), free_extents_.end(),
                                [&](const auto& extent) { return extent.second >= need_bytes; });
  if (fit == free_extents_.end()) return std::nullopt;
  const auto [offset_bytes, extent_bytes] = *fit;
  // First what may run out of memory, then what cannot fail.
  used_extents_.emplace(offset_bytes, need_bytes);
  auto node = free_extents_.extract(fit);
  if (extent_bytes > need_bytes) {
    node.key() = offset_bytes + need_bytes;
    node.mapped() = extent_bytes - need_bytes;
    free_extents_.insert(std::move(node));
  }
  free_bytes_ -= need_bytes;
  return offset_bytes;
}

void ExtentAllocator::free(std::uint64_t offset_bytes, std::uint64_t length_bytes) {
  const auto used = used_extents_.find(offset_bytes);
  KVTIER_CHECK(used != used_extents_.end());
  KVTIER_CHECK(length_bytes > 0);
  KVTIER_CHECK(length_bytes <= capacity_bytes_);
  KVTIER_CHECK(used->second == round_up(length_bytes));
  // The node moves from one map to the other, so that giving back cannot fail for want of memory.
  auto node = used_extents_.extract(used);
  free_bytes_ += node.mapped();
  const auto next = free_extents_.lower_bound(offset_bytes);
  if (next != free_extents_.end() && next->first == offset_bytes + node.mapped()) {
    node.mapped() += next->second;
    free_extents_.erase(next);
  }
  const auto after = free_extents_.lower_bound(offset_bytes);
  if (after != free_extents_.begin()) {
    const auto previous = std::prev(after);
    if (previous->first + previous->second == offset_bytes) {
      previous->second += node.mapped();
      return;
    }
  }
  free_extents_.insert(std::move(node));
}

std::uint64_t ExtentAllocator::largest_free_bytes() const {
  std::uint64_t largest_bytes = 0;
  for (const auto& [offset_bytes, extent_bytes] : free_extents_) {
    largest_bytes = std::max(largest_bytes, extent_bytes);
  }
  return largest_bytes;
}

std::uint64_t ExtentAllocator::run_bytes_if_freed(std::uint64_t offset_bytes,
                                                  std::uint64_t length_bytes) const {
  KVTIER_CHECK(offset_bytes <= capacity_bytes_);
  KVTIER_CHECK(length_bytes <= capacity_bytes_ - offset_bytes);
  std::uint64_t run_bytes = round_up(length_bytes);
  const auto next = free_extents_.lower_bound(offset_bytes);
  if (next != free_extents_.end() && next->first == offset_bytes + run_bytes) {
    run_bytes += next->second;
  }
  if (next != free_extents_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset_bytes) run_bytes += previous->second;
  }
  return run_bytes;
}

std::uint64_t ExtentAllocator::round_up(std::uint64_t length_bytes) const {
  return (length_bytes + unit_bytes_ - 1) / unit_bytes_ * unit_bytes_;
}

}  // namespace kvtier
