// Page-locks in pieces, with roll-back. Thread-safe.
#include "transfer/page_locked_ranges.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvtier::transfer {

PageLockedRanges::~PageLockedRanges() {
  for (const auto& [place, range] : ranges_) unlock(range.pieces);
}

void PageLockedRanges::unlock(const Pieces& pieces) {
  for (const std::span<std::byte> piece : pieces) device_.page_unlock(piece.data());
}

void PageLockedRanges::abandon() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ranges_.clear();
}

Status PageLockedRanges::lock(std::span<std::byte> memory) {
  // Without the mutex: it takes a third of a second for each GiB at worst.
  Pieces pieces;
  std::uint64_t done_bytes = 0;
  while (done_bytes < memory.size()) {
    const std::uint64_t piece_bytes =
        std::min<std::uint64_t>(memory.size() - done_bytes, piece_bytes_max_);
    const auto piece = memory.subspan(done_bytes, piece_bytes);
    const Status locked = device_.page_lock(piece);
    if (!locked.is_ok()) {
      unlock(pieces);
      return Status(locked.code(),
                    locked.message() + ": locked_bytes=" + std::to_string(done_bytes) +
                        " need_bytes=" + std::to_string(memory.size()),
                    locked.os_errno());
    }
    pieces.push_back(piece);
    done_bytes += piece_bytes;
  }
  adopt(memory, std::move(pieces));
  return Status::ok();
}

void PageLockedRanges::adopt(std::span<std::byte> memory, Pieces pieces) {
  const bool can_kernels_reach = device_.info().can_kernels_reach_registered;
  std::lock_guard<std::mutex> lock(mutex_);
  Range& range = ranges_[{memory.data(), memory.size()}];
  ++range.num_uses;
  // What somebody else locked at a good address before stays at it.
  range.can_kernels_reach = can_kernels_reach || (range.num_uses > 1 && range.can_kernels_reach);
  range.pieces.insert(range.pieces.end(), pieces.begin(), pieces.end());
}

void PageLockedRanges::add(std::span<std::byte> memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++ranges_[{memory.data(), memory.size()}].num_uses;
}

void PageLockedRanges::remove(std::span<std::byte> memory) {
  Pieces pieces;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = ranges_.find({memory.data(), memory.size()});
    if (found == ranges_.end() || --found->second.num_uses > 0) return;
    pieces = std::move(found->second.pieces);
    ranges_.erase(found);
  }
  unlock(pieces);
}

bool PageLockedRanges::contains_locked(const std::byte* begin, std::uint64_t length_bytes,
                                       Reach reach) const {
  // Ranges may overlap, so the nearest that begins before is not the only one to look at.
  for (auto next = ranges_.upper_bound({begin, UINT64_MAX}); next != ranges_.begin();) {
    const auto& [place, range] = *--next;
    const auto inside_bytes = static_cast<std::uint64_t>(begin - place.first);
    if (inside_bytes > place.second || length_bytes > place.second - inside_bytes) continue;
    if (reach == Reach::kCopies || range.can_kernels_reach) return true;
  }
  return false;
}

bool PageLockedRanges::contain_all(std::span<std::byte* const> begins, std::uint64_t length_bytes,
                                   Reach reach) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::all_of(begins.begin(), begins.end(), [&](const std::byte* begin) {
    return contains_locked(begin, length_bytes, reach);
  });
}

std::vector<const std::byte*> PageLockedRanges::borders() const {
  std::vector<const std::byte*> borders;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [place, range] : ranges_) {
      borders.push_back(place.first);
      borders.push_back(place.first + place.second);
      for (const std::span<std::byte> piece : range.pieces) borders.push_back(piece.data());
    }
  }
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  return borders;
}

std::uint64_t PageLockedRanges::num_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::uint64_t sum_bytes = 0;
  for (const auto& [place, range] : ranges_) sum_bytes += place.second;
  return sum_bytes;
}

}  // namespace kvtier::transfer
