// SlotCopier: copies payloads from slot to slot of a store's own files. Blocking; not thread-safe.
#pragma once

#include <cstdint>

#include "store/disk_tier.h"

namespace kvtier::store {

class SlotCopier {
 public:
  /// All outlive the copier.
  SlotCopier(Directory& directory, const DiskTier& tier, const SlotSpace& slots)
      : directory_(directory), tier_(tier), slots_(slots) {}
  ~SlotCopier();
  SlotCopier(const SlotCopier&) = delete;
  SlotCopier& operator=(const SlotCopier&) = delete;

  /// Slots of one size. Durable only after the target's file was synced.
  Status copy(SlotRef source, SlotRef target);
  /// Until a write failed.
  bool is_writable() const { return is_writable_; }

 private:
  struct OpenedSegment {
    std::uint16_t segment_index = 0;
    int fd = -1;
  };

  std::uint64_t offset_of(SlotRef slot) const;
  /// Whoever copies goes segment by segment: one file each way stays open.
  Result<int> open(OpenedSegment& opened, std::uint16_t segment_index);
  void close(OpenedSegment& opened);

  Directory& directory_;
  const DiskTier& tier_;
  const SlotSpace& slots_;
  OpenedSegment source_;
  OpenedSegment target_;
  bool is_writable_ = true;
};

}  // namespace kvtier::store
