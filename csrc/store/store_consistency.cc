// Checks of the whole store's bookkeeping against itself, for tests and soaks. Thread-safe; slow.
#include <string>

#include "store/pin_limit.h"
#include "store/store_impl.h"

namespace kvtier {
namespace {

Status broken(const std::string& rule, store::EntryIndex entry) {
  return Status(StatusCode::kInternal, rule + ": entry=" + std::to_string(entry));
}

}  // namespace

Status Store::Impl::check_consistency() {
  Locked locked(*this);
  Status first_failure;
  std::uint64_t num_resident[store::kNumTiers] = {0, 0};
  std::uint64_t num_in_both = 0;
  index_.for_each([&](EntryIndex entry) {
    if (first_failure.is_ok()) first_failure = check_entry(entry);
    const store::BlockEntry& block = index_.at(entry);
    if (block.is_resident(kHost) && block.is_resident(kDisk)) ++num_in_both;
    for (const store::TierId tier : {kHost, kDisk}) {
      if (block.is_resident(tier)) ++num_resident[static_cast<std::size_t>(tier)];
    }
  });
  if (!first_failure.is_ok()) return first_failure;
  if (num_resident[0] != host_space_.stats.blocks || num_resident[1] != disk_space_.stats.blocks) {
    return broken("the number of resident blocks does not add up", kNoEntry);
  }
  if (num_in_both != life_.num_in_both()) {
    return broken("the number of blocks in both tiers does not add up", kNoEntry);
  }
  if (Status pins = check_pins(); !pins.is_ok()) return pins;
  if (Status host = check_slots(host_space_); !host.is_ok()) return host;
  return check_slots(disk_space_);
}

Status Store::Impl::check_entry(EntryIndex entry) {
  const store::BlockEntry& block = index_.at(entry);
  if (block.is_detached) return broken("a detached entry is in the hash", entry);
  for (const store::TierId tier : {kHost, kDisk}) {
    if (block.tier_state(tier) == store::CopyState::kAbsent) continue;
    const store::TierSpace& space = tier == kHost ? host_space_ : disk_space_;
    if (space.slots.owner(block.slot(tier)) != entry) {
      return broken("a slot belongs to another entry", entry);
    }
    if (block.tier_state(tier) == store::CopyState::kLeaving) {
      return broken("a leaving copy is still looked up", entry);
    }
  }
  std::uint32_t num_disk_children = 0;
  EntryIndex child = block.first_child;
  for (; child != kNoEntry; child = index_.at(child).next_sibling) {
    if (index_.at(child).parent != entry) return broken("a child has another parent", entry);
    if (index_.at(child).tier_state(kDisk) != store::CopyState::kAbsent) ++num_disk_children;
  }
  if (num_disk_children != block.num_disk_children) {
    return broken("the number of children on disk does not add up", entry);
  }
  if (block.parent == kNoEntry) return Status::ok();
  const store::BlockEntry& parent = index_.at(block.parent);
  if (block.is_resident(kDisk) && !parent.is_resident(kDisk)) {
    return broken("the disk tier is not closed under parents", entry);
  }
  if (block.is_resident_anywhere() && !parent.is_resident_anywhere()) {
    return broken("the tiers together are not closed under parents", entry);
  }
  return Status::ok();
}

/// Pinned blocks are there, and each tier's share of them adds up and stays within its bound.
Status Store::Impl::check_pins() {
  std::uint64_t pinned_bytes[store::kNumTiers] = {0, 0};
  EntryIndex absent = kNoEntry;
  index_.for_each([&](EntryIndex entry) {
    const store::BlockEntry& block = index_.at(entry);
    if (block.pin_count == 0) return;
    if (!block.is_resident_anywhere()) {
      absent = entry;
      return;
    }
    const store::TierId tier = block.pinned_tier();
    const store::TierSpace& space = tier == kHost ? host_space_ : disk_space_;
    pinned_bytes[static_cast<std::size_t>(tier)] += space.slots.slot_bytes(block.slot(tier));
  });
  if (absent != kNoEntry) return broken("a pinned block is not resident", absent);
  if (pinned_bytes[0] != host_space_.stats.pinned_bytes ||
      pinned_bytes[1] != disk_space_.stats.pinned_bytes) {
    return broken("pinned bytes do not add up", kNoEntry);
  }
  const bool is_bounded = pinned_bytes[0] <= store::pinned_bytes_max(options_.host_bytes) &&
                          pinned_bytes[1] <= store::pinned_bytes_max(options_.disk_bytes);
  return is_bounded ? Status::ok() : broken("more is pinned than a tier allows", kNoEntry);
}

/// Each slot is free or owned by an entry that says so; the counts add up.
Status Store::Impl::check_slots(store::TierSpace& space) {
  std::uint64_t used_bytes = 0;
  for (std::uint16_t s = 0; s < space.slots.segment_index_end(); ++s) {
    const store::Segment& segment = space.slots.segment(s);
    if (!segment.is_present) continue;
    std::uint32_t num_used = 0;
    std::uint64_t use_sum = 0;
    for (std::uint32_t i = 0; i < segment.num_slots(); ++i) {
      const EntryIndex owner = segment.owners[i];
      if (owner == kNoEntry) continue;
      const store::BlockEntry& block = index_.at(owner);
      const store::SlotRef slot = block.slot(space.id);
      const bool is_its_own = slot.slot_index == i && slot.segment_index == s &&
                              block.tier_state(space.id) != store::CopyState::kAbsent;
      if (!is_its_own) return broken("a slot's owner does not know of it", owner);
      if (block.is_resident(space.id)) use_sum += block.last_use;
      ++num_used;
      used_bytes += space.slots.slot_bytes(slot);
    }
    const bool is_whole =
        num_used == segment.num_used && num_used + segment.free_slots.size() == segment.num_slots();
    if (!is_whole) return broken("free and used slots do not add up", s);
    if (use_sum != segment.use_sum) return broken("uses do not add up", s);
  }
  if (used_bytes != space.slots.used_bytes()) return broken("used bytes do not add up", kNoEntry);
  return Status::ok();
}

}  // namespace kvtier
