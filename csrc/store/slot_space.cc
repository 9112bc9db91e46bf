// Bookkeeping of slots. Guarded by the store's mutex.
#include "store/slot_space.h"

#include <algorithm>

namespace kvtier::store {

ClassIndex SlotSpace::class_index_of(const SizeClass& size_class) {
  for (ClassIndex i = 0; i < classes_.size(); ++i) {
    if (classes_[i].size_class == size_class) return i;
  }
  classes_.push_back(ClassState{size_class, 0, 0, {}});
  return static_cast<ClassIndex>(classes_.size() - 1);
}

std::optional<std::uint16_t> SlotSpace::add_segment(ClassIndex class_index, std::uint32_t num_slots,
                                                    std::uint64_t place) {
  std::uint16_t segment_index;
  if (!absent_segments_.empty()) {
    segment_index = absent_segments_.back();
    absent_segments_.pop_back();
  } else {
    if (segments_.size() == kSegmentsMax) return std::nullopt;
    segment_index = static_cast<std::uint16_t>(segments_.size());
    segments_.emplace_back();
  }
  Segment& added = segments_[segment_index];
  added = Segment{};
  added.is_present = true;
  added.class_index = class_index;
  added.place = place;
  added.owners.assign(num_slots, kNoEntry);
  added.free_slots.resize(num_slots);
  for (std::uint32_t i = 0; i < num_slots; ++i) added.free_slots[i] = num_slots - 1 - i;
  classes_.at(class_index).num_slots += num_slots;
  open_segment(segment_index);
  return segment_index;
}

void SlotSpace::remove_segment(std::uint16_t segment_index) {
  Segment& removed = segments_.at(segment_index);
  KVTIER_CHECK(removed.is_present);
  KVTIER_CHECK(removed.num_used == 0);
  if (removed.is_open) close_segment(segment_index);
  classes_[removed.class_index].num_slots -= removed.num_slots();
  removed = Segment{};
  absent_segments_.push_back(segment_index);
}

void SlotSpace::close_segment(std::uint16_t segment_index) {
  Segment& closed = segments_.at(segment_index);
  closed.is_open = false;
  auto& open = classes_[closed.class_index].open_segments;
  std::erase(open, segment_index);
}

void SlotSpace::open_segment(std::uint16_t segment_index) {
  Segment& opened = segments_.at(segment_index);
  KVTIER_CHECK(!opened.is_open);
  opened.is_open = true;
  if (!opened.free_slots.empty()) {
    classes_[opened.class_index].open_segments.push_back(segment_index);
  }
}

std::optional<SlotRef> SlotSpace::reserve(ClassIndex class_index, EntryIndex owner) {
  ClassState& wanted = classes_.at(class_index);
  if (wanted.open_segments.empty()) return std::nullopt;
  const std::uint16_t segment_index = wanted.open_segments.back();
  Segment& from = segments_[segment_index];
  KVTIER_CHECK(!from.free_slots.empty());
  const std::uint32_t slot_index = from.free_slots.back();
  from.free_slots.pop_back();
  if (from.free_slots.empty()) wanted.open_segments.pop_back();
  KVTIER_CHECK(from.owners[slot_index] == kNoEntry);
  from.owners[slot_index] = owner;
  ++from.num_used;
  ++wanted.num_used;
  used_bytes_ += wanted.size_class.slot_bytes;
  return SlotRef{slot_index, segment_index};
}

void SlotSpace::claim(SlotRef slot, EntryIndex owner) {
  Segment& from = segments_.at(slot.segment_index);
  KVTIER_CHECK(from.owners.at(slot.slot_index) == kNoEntry);
  from.owners[slot.slot_index] = owner;
  ++from.num_used;
  ++classes_[from.class_index].num_used;
  used_bytes_ += slot_bytes(slot);
}

void SlotSpace::reserve_released(SlotRef slot, EntryIndex owner) {
  Segment& from = segments_.at(slot.segment_index);
  KVTIER_CHECK(!from.free_slots.empty());
  KVTIER_CHECK(from.free_slots.back() == slot.slot_index);
  from.free_slots.pop_back();
  if (from.free_slots.empty()) {
    std::erase(classes_[from.class_index].open_segments, slot.segment_index);
  }
  claim(slot, owner);
}

void SlotSpace::release(SlotRef slot) {
  Segment& to = segments_.at(slot.segment_index);
  KVTIER_CHECK(to.owners.at(slot.slot_index) != kNoEntry);
  to.owners[slot.slot_index] = kNoEntry;
  to.free_slots.push_back(slot.slot_index);
  --to.num_used;
  ClassState& of = classes_[to.class_index];
  --of.num_used;
  used_bytes_ -= of.size_class.slot_bytes;
  if (to.is_open && to.free_slots.size() == 1) of.open_segments.push_back(slot.segment_index);
}

EntryIndex SlotSpace::owner(SlotRef slot) const {
  return segments_.at(slot.segment_index).owners.at(slot.slot_index);
}

std::uint64_t SlotSpace::num_bytes() const {
  std::uint64_t total = 0;
  for (const Segment& each : segments_) {
    total += each.owners.size() * sizeof(EntryIndex) + each.free_slots.size() * 4;
  }
  return total;
}

void SlotSpace::rebuild_free_lists() {
  for (ClassState& each : classes_) each.open_segments.clear();
  for (std::uint16_t s = 0; s < segments_.size(); ++s) {
    Segment& rebuilt = segments_[s];
    if (!rebuilt.is_present) continue;
    rebuilt.free_slots.clear();
    for (std::uint32_t i = rebuilt.num_slots(); i-- > 0;) {
      if (rebuilt.owners[i] == kNoEntry) rebuilt.free_slots.push_back(i);
    }
    if (rebuilt.is_open && !rebuilt.free_slots.empty()) {
      classes_[rebuilt.class_index].open_segments.push_back(s);
    }
  }
}

}  // namespace kvtier::store
