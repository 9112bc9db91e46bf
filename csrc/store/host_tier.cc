// Room in host memory. Guarded by the store's mutex.
#include "store/host_tier.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace kvtier::store {
namespace {

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kSegmentBytesMin = 1ull << 20;
constexpr std::uint64_t kSegmentBytesMax = 256ull << 20;
// How often a class that still has victims of its own looks whether another class holds older
// blocks: the search walks all segments, so not at each eviction.
constexpr std::uint32_t kEvictionsBetweenLooks = 16;

}  // namespace

std::uint64_t segment_target_bytes(std::uint64_t capacity_bytes) {
  return std::clamp(capacity_bytes / 32, kSegmentBytesMin, kSegmentBytesMax);
}

HostTier::HostTier(BlockLife& life, TierSpace& space, std::shared_ptr<Arena> arena,
                   std::uint64_t capacity_bytes)
    : life_(life),
      space_(space),
      arena_(std::move(arena)),
      capacity_bytes_(capacity_bytes),
      segment_target_bytes_(kvtier::store::segment_target_bytes(capacity_bytes)),
      extents_(capacity_bytes, kPageBytes) {}

void HostTier::prefault(const std::shared_ptr<Executor>& executor, std::uint64_t ahead_bytes) {
  if (!prefaulter_) prefaulter_.emplace(executor, arena_, ahead_bytes);
}

std::optional<SlotRef> HostTier::reserve(ClassIndex class_index, EntryIndex owner) {
  if (!is_present()) return std::nullopt;
  if (space_.slots.size_class(class_index).slot_bytes > capacity_bytes_) return std::nullopt;
  while (true) {
    if (const auto slot = space_.slots.reserve(class_index, owner)) return slot;
    if (add_segment(class_index)) continue;
    const bool is_time_to_look = ++num_evictions_ % kEvictionsBetweenLooks == 0;
    if (is_time_to_look && take_from_others(class_index, false)) continue;
    if (evict_one(class_index)) continue;
    if (take_from_others(class_index, true)) continue;
    return std::nullopt;
  }
}

std::byte* HostTier::address(SlotRef slot) const {
  const Segment& segment = space_.slots.segment(slot.segment_index);
  return arena_->base() + segment.place + space_.slots.slot_bytes(slot) * slot.slot_index;
}

std::span<std::byte> HostTier::bytes(SlotRef slot) const {
  return {address(slot), space_.slots.slot_bytes(slot)};
}

bool HostTier::add_segment(ClassIndex class_index) {
  const std::uint64_t slot_bytes = space_.slots.size_class(class_index).slot_bytes;
  std::uint64_t num_slots = std::max<std::uint64_t>(1, segment_target_bytes_ / slot_bytes);
  for (; num_slots > 0; num_slots /= 2) {
    const std::uint64_t length_bytes = num_slots * slot_bytes;
    if (extents_.largest_free_bytes() < length_bytes) continue;
    const auto offset_bytes = extents_.allocate(length_bytes);
    if (!offset_bytes) continue;
    if (space_.slots.add_segment(class_index, static_cast<std::uint32_t>(num_slots),
                                 *offset_bytes)) {
      if (prefaulter_) prefaulter_->note_used(*offset_bytes + length_bytes);
      return true;
    }
    extents_.free(*offset_bytes, length_bytes);
    return false;
  }
  return false;
}

bool HostTier::evict_one(ClassIndex class_index) {
  const EntryIndex victim = space_.policy(class_index).victim([this](EntryIndex candidate) {
    return life_.is_evictable(candidate, TierId::kHost);
  });
  if (victim == kNoEntry) return false;
  life_.evict(victim, TierId::kHost);
  return true;
}

bool HostTier::take_from_others(ClassIndex class_index, bool is_forced) {
  if (space_.slots.num_classes() < 2) return false;
  double own_value = 1e300;
  if (!is_forced) {
    const EntryIndex own = space_.policy(class_index).victim([this](EntryIndex candidate) {
      return life_.is_evictable(candidate, TierId::kHost);
    });
    if (own != kNoEntry) own_value = life_.index().at(own).last_use;
  }
  if (!has_cheaper_segment(class_index, own_value)) return false;
  const std::uint64_t slot_bytes = space_.slots.size_class(class_index).slot_bytes;
  const auto window = cheapest_window(class_index, slot_bytes);
  if (!window || window->value >= own_value) return false;
  bool is_emptied = true;
  for (std::uint16_t s = 0; s < space_.slots.segment_index_end(); ++s) {
    const Segment& segment = space_.slots.segment(s);
    if (!segment.is_present || segment.place < window->offset_bytes) continue;
    if (segment.place >= window->offset_bytes + window->length_bytes) continue;
    if (empty_segment(s)) {
      remove_segment(s);
    } else {
      is_emptied = false;
    }
  }
  return is_emptied && add_segment(class_index);
}

/// A look at the segments' means only: spares the search for a window when there is nothing to
/// gain.
bool HostTier::has_cheaper_segment(ClassIndex class_index, double value) const {
  for (std::uint16_t s = 0; s < space_.slots.segment_index_end(); ++s) {
    const Segment& segment = space_.slots.segment(s);
    if (!segment.is_present || segment.class_index == class_index) continue;
    if (segment.num_used == 0) return true;
    if (static_cast<double>(segment.use_sum) / segment.num_used < value) return true;
  }
  return false;
}

std::optional<HostTier::Window> HostTier::cheapest_window(ClassIndex class_index,
                                                          std::uint64_t length_bytes) const {
  struct Piece {
    std::uint64_t offset_bytes, length_bytes, use_sum, num_used;
    bool is_takeable;
  };
  std::vector<Piece> pieces;
  for (std::uint16_t s = 0; s < space_.slots.segment_index_end(); ++s) {
    const Segment& segment = space_.slots.segment(s);
    if (!segment.is_present) continue;
    bool is_takeable = segment.class_index != class_index;
    for (const EntryIndex owner : segment.owners) {
      if (!is_takeable) break;
      if (owner != kNoEntry && (life_.index().at(owner).num_holds > 0 ||
                                !life_.index().at(owner).is_resident(TierId::kHost))) {
        is_takeable = false;
      }
    }
    pieces.push_back(
        {segment.place, segment_bytes(s), segment.use_sum, segment.num_used, is_takeable});
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.offset_bytes < b.offset_bytes; });

  // Every run of neighbouring takeable segments that, with the free space between and around them,
  // is long enough; gaps between segments are free extents.
  std::optional<Window> cheapest;
  for (std::size_t first = 0; first < pieces.size(); ++first) {
    const std::uint64_t begin =
        first == 0 ? 0 : pieces[first - 1].offset_bytes + pieces[first - 1].length_bytes;
    std::uint64_t use_sum = 0, num_used = 0;
    for (std::size_t last = first; last < pieces.size() && pieces[last].is_takeable; ++last) {
      use_sum += pieces[last].use_sum;
      num_used += pieces[last].num_used;
      const std::uint64_t end =
          last + 1 < pieces.size() ? pieces[last + 1].offset_bytes : extents_.capacity_bytes();
      if (end - begin < length_bytes) continue;
      const double value =
          num_used == 0 ? 0.0 : static_cast<double>(use_sum) / static_cast<double>(num_used);
      if (!cheapest || value < cheapest->value) cheapest = Window{begin, end - begin, value};
      break;
    }
  }
  return cheapest;
}

bool HostTier::empty_segment(std::uint16_t segment_index) {
  if (space_.slots.segment(segment_index).is_open) space_.slots.close_segment(segment_index);
  // Evicting a leaf can make its parent evictable, so passes go on while they achieve something.
  bool is_moving = true;
  while (is_moving && space_.slots.segment(segment_index).num_used > 0) {
    is_moving = false;
    for (std::uint32_t i = 0; i < space_.slots.segment(segment_index).num_slots(); ++i) {
      const EntryIndex owner = space_.slots.segment(segment_index).owners[i];
      if (owner == kNoEntry || !life_.is_evictable(owner, TierId::kHost)) continue;
      life_.evict(owner, TierId::kHost);
      is_moving = true;
    }
  }
  for (std::uint32_t i = 0; i < space_.slots.segment(segment_index).num_slots(); ++i) {
    const EntryIndex owner = space_.slots.segment(segment_index).owners[i];
    if (owner != kNoEntry && !relocate(owner)) break;
  }
  if (space_.slots.segment(segment_index).num_used == 0) return true;
  space_.slots.open_segment(segment_index);
  return false;
}

/// Leased, pinned and parent blocks move to another slot of their class.
bool HostTier::relocate(EntryIndex entry) {
  const BlockEntry& moved = life_.index().at(entry);
  if (!moved.is_resident(TierId::kHost) || moved.num_holds > 0) return false;
  const SlotRef source = moved.slot(TierId::kHost);
  const ClassIndex class_index = space_.slots.segment(source.segment_index).class_index;
  auto target = space_.slots.reserve(class_index, entry);
  // What goes may lie in the very segment that is being emptied, and leaves no slot to move to.
  while (!target) {
    life_.hold(entry);  // It must not become its own victim.
    const bool has_room = evict_one(class_index);
    life_.unhold(entry);
    if (!has_room) return false;
    target = space_.slots.reserve(class_index, entry);
  }
  std::memcpy(address(*target), address(source), space_.slots.slot_bytes(source));
  life_.relocate(entry, TierId::kHost, *target);
  return true;
}

std::uint64_t HostTier::segment_bytes(std::uint16_t segment_index) const {
  const Segment& segment = space_.slots.segment(segment_index);
  const std::uint64_t bytes =
      segment.num_slots() * space_.slots.size_class(segment.class_index).slot_bytes;
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

void HostTier::remove_segment(std::uint16_t segment_index) {
  const std::uint64_t place = space_.slots.segment(segment_index).place;
  const std::uint64_t length_bytes = segment_bytes(segment_index);
  space_.slots.remove_segment(segment_index);
  extents_.free(place, length_bytes);
}

}  // namespace kvtier::store
