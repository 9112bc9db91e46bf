// HostTier: slots in the arena for blocks in host memory; makes room by adding segments, evicting,
// and emptying the least valuable segments of other size classes. Guarded by the store's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/status.h"
#include "memory/arena.h"
#include "memory/extent_allocator.h"
#include "store/block_life.h"
#include "store/prefaulter.h"

namespace kvtier::store {

class HostTier {
 public:
  /// `life` must know `space` as its host space.
  HostTier(BlockLife& life, TierSpace& space, std::shared_ptr<Arena> arena,
           std::uint64_t capacity_bytes);

  bool is_present() const { return capacity_bytes_ > 0; }
  std::uint64_t capacity_bytes() const { return capacity_bytes_; }
  /// The largest slot that this tier takes.
  std::uint64_t slot_bytes_max() const { return capacity_bytes_ / 4; }

  /// From now on `ahead_bytes` of memory are provided beyond the segments that there are. The first
  /// call counts.
  void prefault(const std::shared_ptr<Executor>& executor, std::uint64_t ahead_bytes);

  /// A slot of the class for `owner`; evicts if it must. Nothing when none can be had.
  std::optional<SlotRef> reserve(ClassIndex class_index, EntryIndex owner);
  std::byte* address(SlotRef slot) const;
  std::span<std::byte> bytes(SlotRef slot) const;

  const std::shared_ptr<Arena>& arena() const { return arena_; }

 private:
  struct Window {
    std::uint64_t offset_bytes = 0;
    std::uint64_t length_bytes = 0;
    double value = 0;  // Mean last_use of its blocks.
  };

  bool add_segment(ClassIndex class_index);
  bool evict_one(ClassIndex class_index);
  /// Empties the least valuable run of other classes' segments in which a segment of the class
  /// fits, if it is worth less than the class's own oldest block, or if `is_forced`.
  bool take_from_others(ClassIndex class_index, bool is_forced);
  bool has_cheaper_segment(ClassIndex class_index, double value) const;
  std::optional<Window> cheapest_window(ClassIndex class_index, std::uint64_t length_bytes) const;
  bool empty_segment(std::uint16_t segment_index);
  bool relocate(EntryIndex entry);
  std::uint64_t segment_bytes(std::uint16_t segment_index) const;
  void remove_segment(std::uint16_t segment_index);

  BlockLife& life_;
  TierSpace& space_;
  const std::shared_ptr<Arena> arena_;  // Shared with those who page-locked it.
  const std::uint64_t capacity_bytes_;
  const std::uint64_t segment_target_bytes_;
  ExtentAllocator extents_;
  std::optional<Prefaulter> prefaulter_;  // None: memory is provided when it is first touched.
  std::uint32_t num_evictions_ = 0;
};

/// Bytes of a full-sized segment in a tier of that capacity.
std::uint64_t segment_target_bytes(std::uint64_t capacity_bytes);

}  // namespace kvtier::store
