// Page-locks in pieces, with roll-back. Thread-safe.
#include "transfer/page_locked_ranges.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvtier::transfer {

PageLockedRanges::~PageLockedRanges() {
  for (const auto& [begin, range] : ranges_) unlock(range.pieces);
}

void PageLockedRanges::unlock(const std::vector<std::byte*>& pieces) {
  for (std::byte* piece : pieces) device_.page_unlock(piece);
}

void PageLockedRanges::abandon() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ranges_.clear();
}

Status PageLockedRanges::lock(std::span<std::byte> memory) {
  // Without the mutex: it takes a third of a second for each GiB at worst.
  std::vector<std::byte*> pieces;
  std::uint64_t done_bytes = 0;
  while (done_bytes < memory.size()) {
    const std::uint64_t piece_bytes =
        std::min<std::uint64_t>(memory.size() - done_bytes, piece_bytes_max_);
    const Status locked = device_.page_lock(memory.subspan(done_bytes, piece_bytes));
    if (!locked.is_ok()) {
      unlock(pieces);
      return Status(locked.code(),
                    locked.message() + ": locked_bytes=" + std::to_string(done_bytes) +
                        " need_bytes=" + std::to_string(memory.size()),
                    locked.os_errno());
    }
    pieces.push_back(memory.data() + done_bytes);
    done_bytes += piece_bytes;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  ranges_[memory.data()] = {memory.size(), std::move(pieces)};
  return Status::ok();
}

void PageLockedRanges::add(std::span<std::byte> memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  ranges_[memory.data()] = {memory.size(), {}};
}

void PageLockedRanges::remove(std::span<std::byte> memory) {
  std::vector<std::byte*> pieces;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = ranges_.find(memory.data());
    if (found == ranges_.end() || found->second.length_bytes != memory.size()) return;
    pieces = std::move(found->second.pieces);
    ranges_.erase(found);
  }
  unlock(pieces);
}

bool PageLockedRanges::contain_all(std::span<std::byte* const> begins,
                                   std::uint64_t length_bytes) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::all_of(begins.begin(), begins.end(), [&](const std::byte* begin) {
    const auto next = ranges_.upper_bound(begin);
    if (next == ranges_.begin()) return false;
    const auto& [range_begin, range] = *std::prev(next);
    const auto inside_bytes = static_cast<std::uint64_t>(begin - range_begin);
    return inside_bytes <= range.length_bytes && length_bytes <= range.length_bytes - inside_bytes;
  });
}

std::uint64_t PageLockedRanges::num_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::uint64_t sum_bytes = 0;
  for (const auto& [begin, range] : ranges_) sum_bytes += range.length_bytes;
  return sum_bytes;
}

}  // namespace kvtier::transfer
