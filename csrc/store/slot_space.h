// SlotSpace: the segments and slots of one tier: which slot is free and who owns the others.
// Bookkeeping only. Guarded by the store's mutex.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "store/block_entry.h"

namespace kvtier::store {

/// Blocks whose slots have the same size and, on disk, the same table entries.
struct SizeClass {
  std::uint64_t slot_bytes = 0;
  std::uint32_t num_parts = 1;
  friend bool operator==(const SizeClass&, const SizeClass&) = default;
};

using ClassIndex = std::uint32_t;

struct Segment {
  bool is_present = false;
  bool is_open = false;  // Gives slots; false while it is being emptied.
  ClassIndex class_index = 0;
  std::uint64_t place = 0;  // Host: offset in the arena. Disk: segment_id.
  std::uint32_t num_used = 0;
  std::uint64_t use_sum = 0;              // Of last_use over its resident blocks.
  std::vector<EntryIndex> owners;         // One a slot; kNoEntry: free.
  std::vector<std::uint32_t> free_slots;  // A stack; fresh segments give slots in rising order.

  std::uint32_t num_slots() const { return static_cast<std::uint32_t>(owners.size()); }
};

class SlotSpace {
 public:
  static constexpr std::size_t kSegmentsMax = 65535;

  /// Index of the class, added when new.
  ClassIndex class_index_of(const SizeClass& size_class);
  const SizeClass& size_class(ClassIndex index) const { return classes_.at(index).size_class; }
  std::size_t num_classes() const { return classes_.size(); }
  std::uint64_t num_class_slots(ClassIndex index) const { return classes_.at(index).num_slots; }
  std::uint64_t num_class_used(ClassIndex index) const { return classes_.at(index).num_used; }

  bool has_room_for_segments(std::size_t num_segments) const {
    return absent_segments_.size() + (kSegmentsMax - segments_.size()) >= num_segments;
  }
  /// Nothing when kSegmentsMax are in use.
  std::optional<std::uint16_t> add_segment(ClassIndex class_index, std::uint32_t num_slots,
                                           std::uint64_t place);
  /// Requires that no slot is used.
  void remove_segment(std::uint16_t segment_index);
  /// A closed segment gives no more slots.
  void close_segment(std::uint16_t segment_index);
  void open_segment(std::uint16_t segment_index);

  std::optional<SlotRef> reserve(ClassIndex class_index, EntryIndex owner);
  /// Takes one given free slot. Only recovery does this.
  void claim(SlotRef slot, EntryIndex owner);
  /// Takes the slot that was released last.
  void reserve_released(SlotRef slot, EntryIndex owner);
  void release(SlotRef slot);
  EntryIndex owner(SlotRef slot) const;

  Segment& segment(std::uint16_t segment_index) { return segments_.at(segment_index); }
  const Segment& segment(std::uint16_t segment_index) const { return segments_.at(segment_index); }
  /// One past the highest segment index; some below may be absent.
  std::uint16_t segment_index_end() const { return static_cast<std::uint16_t>(segments_.size()); }
  std::uint64_t slot_bytes(SlotRef slot) const {
    return classes_[segments_.at(slot.segment_index).class_index].size_class.slot_bytes;
  }
  std::uint64_t used_bytes() const { return used_bytes_; }
  std::uint64_t num_bytes() const;  // Of this bookkeeping.
  /// Rebuilds every free list in rising order, after claim().
  void rebuild_free_lists();

 private:
  struct ClassState {
    SizeClass size_class;
    std::uint64_t num_slots = 0;
    std::uint64_t num_used = 0;
    std::vector<std::uint16_t> open_segments;  // That may have a free slot; tried from the back.
  };

  std::vector<ClassState> classes_;
  std::vector<Segment> segments_;
  std::vector<std::uint16_t> absent_segments_;
  std::uint64_t used_bytes_ = 0;
};

}  // namespace kvtier::store
