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
  ranges_.clear();  // Nobody asks for a view any more, and the end needs no memory.
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
  renew_view();
}

void PageLockedRanges::add(std::span<std::byte> memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++ranges_[{memory.data(), memory.size()}].num_uses;
  renew_view();
}

void PageLockedRanges::remove(std::span<std::byte> memory) {
  Pieces pieces;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = ranges_.find({memory.data(), memory.size()});
    if (found == ranges_.end() || --found->second.num_uses > 0) return;
    pieces = std::move(found->second.pieces);
    ranges_.erase(found);
    renew_view();
  }
  unlock(pieces);
}

std::shared_ptr<const PageLockedView> PageLockedRanges::view() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return view_;
}

void PageLockedRanges::renew_view() {
  auto view = std::make_shared<PageLockedView>();
  const std::byte* last_end = nullptr;
  for (const auto& [place, range] : ranges_) {
    const std::byte* end = place.first + place.second;
    last_end = std::max(last_end, end);
    view->ranges.push_back({place.first, end, last_end, range.can_kernels_reach});
    view->borders.push_back(place.first);
    view->borders.push_back(end);
    for (const std::span<std::byte> piece : range.pieces) view->borders.push_back(piece.data());
  }
  std::sort(view->borders.begin(), view->borders.end());
  view->borders.erase(std::unique(view->borders.begin(), view->borders.end()), view->borders.end());
  view_ = std::move(view);
}

namespace {

bool is_inside(const PageLockedView::Range& range, const std::byte* begin,
               std::uint64_t length_bytes) {
  return begin >= range.begin && begin <= range.end &&
         length_bytes <= static_cast<std::uint64_t>(range.end - begin);
}

// The range around the place that is good for most; null: there is none.
const PageLockedView::Range* find_range(const std::vector<PageLockedView::Range>& ranges,
                                        const std::byte* begin, std::uint64_t length_bytes) {
  auto next = std::upper_bound(ranges.begin(), ranges.end(), begin,
                               [](const std::byte* address, const PageLockedView::Range& range) {
                                 return address < range.begin;
                               });
  const PageLockedView::Range* found = nullptr;
  // Ranges may overlap, so the nearest that begins before is not the only one to look at.
  while (next != ranges.begin() && (--next)->last_end > begin) {
    if (!is_inside(*next, begin, length_bytes)) continue;
    found = &*next;
    if (found->can_kernels_reach) break;
  }
  return found;
}

}  // namespace

Reach PageLockedView::reach_of(std::span<std::byte* const> begins,
                               std::uint64_t length_bytes) const {
  Reach reach = Reach::kKernels;
  const Range* found = nullptr;
  for (const std::byte* begin : begins) {
    // Slots of a job lie mostly in one arena. What only copies reach is looked up again while it
    // could make the answer worse.
    const bool is_known = found != nullptr && is_inside(*found, begin, length_bytes) &&
                          (found->can_kernels_reach || reach == Reach::kCopies);
    if (!is_known) found = find_range(ranges, begin, length_bytes);
    if (found == nullptr) return Reach::kNone;
    if (!found->can_kernels_reach) reach = Reach::kCopies;
  }
  return reach;
}

std::uint64_t PageLockedRanges::num_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::uint64_t sum_bytes = 0;
  for (const auto& [place, range] : ranges_) sum_bytes += place.second;
  return sum_bytes;
}

}  // namespace kvtier::transfer
