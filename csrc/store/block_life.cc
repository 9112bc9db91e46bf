// Transitions of blocks. Guarded by the store's mutex.
#include "store/block_life.h"

#include <algorithm>

namespace kvtier::store {
namespace {

constexpr TierId kTiers[] = {TierId::kHost, TierId::kDisk};

}  // namespace

void BlockLife::hold(EntryIndex entry) {
  BlockEntry& held = index_.at(entry);
  KVTIER_CHECK(held.num_holds < UINT32_MAX);
  ++held.num_holds;
}

void BlockLife::unhold(EntryIndex entry) {
  BlockEntry& held = index_.at(entry);
  KVTIER_CHECK(held.num_holds > 0);
  --held.num_holds;
  if (held.is_detached) settle(entry);
}

void BlockLife::forget_new(EntryIndex entry) {
  BlockEntry& unused = index_.at(entry);
  KVTIER_CHECK(unused.num_holds == 1);
  unused.num_holds = 0;
  index_.free(entry);
}

void BlockLife::lease(EntryIndex entry, TierId tier) {
  BlockEntry& leased = index_.at(entry);
  std::uint16_t& num_leases = leased.num_leases[static_cast<std::size_t>(tier)];
  KVTIER_CHECK(num_leases < UINT16_MAX);
  if (num_leases++ == 0) {
    space(tier).stats.leased_bytes += space(tier).slots.slot_bytes(leased.slot(tier));
  }
}

void BlockLife::unlease(EntryIndex entry, TierId tier) {
  BlockEntry& leased = index_.at(entry);
  std::uint16_t& num_leases = leased.num_leases[static_cast<std::size_t>(tier)];
  KVTIER_CHECK(num_leases > 0);
  if (--num_leases == 0) {
    space(tier).stats.leased_bytes -= space(tier).slots.slot_bytes(leased.slot(tier));
  }
  if (leased.is_detached) settle(entry);
}

void BlockLife::pin(EntryIndex entry) {
  const BlockEntry& pinned = index_.at(entry);
  KVTIER_CHECK(pinned.is_resident_anywhere());
  KVTIER_CHECK(pinned.pin_count < UINT16_MAX);
  set_pin_count(entry, static_cast<std::uint16_t>(pinned.pin_count + 1));
}

void BlockLife::unpin(EntryIndex entry) {
  const BlockEntry& pinned = index_.at(entry);
  KVTIER_CHECK(pinned.pin_count > 0);
  set_pin_count(entry, static_cast<std::uint16_t>(pinned.pin_count - 1));
}

void BlockLife::end_pins(EntryIndex entry) {
  if (index_.at(entry).pin_count > 0) set_pin_count(entry, 0);
}

void BlockLife::begin_fill(EntryIndex entry, TierId tier, SlotRef slot) {
  BlockEntry& filled = index_.at(entry);
  filled.set_state(tier, CopyState::kFilling);
  filled.set_slot(tier, slot);
  if (tier != TierId::kDisk) return;
  filled.is_disk_unwanted = false;
  note_disk_slot(entry, true);
}

void BlockLife::move_fill(EntryIndex entry, TierId tier, SlotRef slot) {
  BlockEntry& moved = index_.at(entry);
  KVTIER_CHECK(moved.tier_state(tier) == CopyState::kFilling);
  space(tier).slots.release(moved.slot(tier));
  moved.set_slot(tier, slot);
}

void BlockLife::finish_fill(EntryIndex entry, TierId tier) {
  BlockEntry& filled = index_.at(entry);
  KVTIER_CHECK(!filled.is_detached);
  charge_pins(filled, false);  // A pin follows its block to disk.
  filled.set_state(tier, CopyState::kResident);
  charge_pins(filled, true);
  if (filled.is_resident(TierId::kHost) && filled.is_resident(TierId::kDisk)) ++num_in_both_;
  TierSpace& in = space(tier);
  in.slots.segment(filled.slot(tier).segment_index).use_sum += filled.last_use;
  ++use_counter_;
  set_last_use(filled);
  in.policy_of(filled).insert(entry);
  ++in.stats.blocks;
  ++in.stats.inserted;
  if (in.on_change) in.on_change(filled.slot(tier), SlotChange::kStored);
}

void BlockLife::abort_fill(EntryIndex entry, TierId tier) {
  BlockEntry& failed = index_.at(entry);
  KVTIER_CHECK(!failed.is_detached);
  KVTIER_CHECK(failed.tier_state(tier) == CopyState::kFilling);
  free_slot(entry, tier);
  const TierId other = tier == TierId::kHost ? TierId::kDisk : TierId::kHost;
  if (failed.tier_state(other) == CopyState::kAbsent) remove_family(entry);
}

void BlockLife::adopt_disk_copy(EntryIndex entry, SlotRef slot) {
  BlockEntry& adopted = index_.at(entry);
  TierSpace& disk = space(TierId::kDisk);
  disk.slots.claim(slot, entry);
  adopted.set_state(TierId::kDisk, CopyState::kFilling);
  adopted.set_state(TierId::kDisk, CopyState::kResident);
  adopted.set_slot(TierId::kDisk, slot);
  charge_pins(adopted, true);
  ++disk.stats.blocks;
}

void BlockLife::disown_disk_copy(EntryIndex entry) {
  BlockEntry& disowned = index_.at(entry);
  TierSpace& disk = space(TierId::kDisk);
  charge_pins(disowned, false);
  disowned.pin_count = 0;
  disowned.set_state(TierId::kDisk, CopyState::kAbsent);
  disk.on_change(disowned.slot(TierId::kDisk), SlotChange::kEvicted);
  disk.slots.release(disowned.slot(TierId::kDisk));
  --disk.stats.blocks;
}

void BlockLife::rank_recovered(EntryIndex entry) {
  BlockEntry& ranked = index_.at(entry);
  TierSpace& disk = space(TierId::kDisk);
  ranked.last_use = ++use_counter_;
  disk.slots.segment(ranked.slot(TierId::kDisk).segment_index).use_sum += ranked.last_use;
  disk.policy_of(ranked).insert_recovered(entry);
  note_disk_slot(entry, true);
}

bool BlockLife::is_evictable(EntryIndex entry, TierId tier) const {
  const BlockEntry& candidate = index_.at(entry);
  if (!candidate.is_resident(tier)) return false;
  if (candidate.num_holds > 0) return false;
  if (candidate.pin_count > 0 && candidate.pinned_tier() == tier) return false;
  if (candidate.num_leases[static_cast<std::size_t>(tier)] > 0) return false;
  // The union of the tiers is closed under parents, and so is the disk tier by itself.
  if (tier == TierId::kHost)
    return candidate.is_resident(TierId::kDisk) || !candidate.has_children();
  if (candidate.num_disk_children > 0) return false;
  return candidate.is_resident(TierId::kHost) || !candidate.has_children();
}

void BlockLife::evict(EntryIndex entry, TierId tier) {
  KVTIER_CHECK(is_evictable(entry, tier));
  drop_copy(entry, tier, SlotChange::kEvicted);
  ++space(tier).stats.evicted;
}

void BlockLife::drop_copy(EntryIndex entry, TierId tier, SlotChange change) {
  leave_tier(entry, tier, change);
  free_slot(entry, tier);
  BlockEntry& left = index_.at(entry);
  const bool is_gone = left.tier_state(TierId::kHost) == CopyState::kAbsent &&
                       left.tier_state(TierId::kDisk) == CopyState::kAbsent;
  if (is_gone) remove_family(entry);
}

std::size_t BlockLife::remove_family(EntryIndex root) {
  const std::vector<EntryIndex> members = index_.family(root);
  for (auto member = members.rbegin(); member != members.rend(); ++member) {
    BlockEntry& removed = index_.at(*member);
    charge_pins(removed, false);
    removed.pin_count = 0;
    for (const TierId tier : kTiers) {
      if (removed.is_resident(tier)) {
        leave_tier(*member, tier, SlotChange::kRemoved);
      } else if (removed.tier_state(tier) == CopyState::kFilling) {
        removed.set_state(tier, CopyState::kLeaving);
      }
    }
    // A slot on disk stays reserved while it is busy, but no longer counts for the parent.
    if (removed.tier_state(TierId::kDisk) != CopyState::kAbsent) note_disk_slot(*member, false);
    index_.detach(*member);
    ++num_leaving_;
    settle(*member);
  }
  return members.size();
}

void BlockLife::relocate(EntryIndex entry, TierId tier, SlotRef target) {
  BlockEntry& moved = index_.at(entry);
  KVTIER_CHECK(moved.is_resident(tier));
  KVTIER_CHECK(moved.num_holds == 0);
  TierSpace& in = space(tier);
  const SlotRef source = moved.slot(tier);
  KVTIER_CHECK(in.slots.slot_bytes(source) == in.slots.slot_bytes(target));
  in.slots.segment(source.segment_index).use_sum -= moved.last_use;
  in.slots.segment(target.segment_index).use_sum += moved.last_use;
  moved.set_slot(tier, target);
  if (in.on_change) {
    in.on_change(source, SlotChange::kEvicted);
    in.on_change(target, SlotChange::kStored);
  }
  in.slots.release(source);
}

void BlockLife::touch_chain(std::span<const EntryIndex> chain) {
  ++use_counter_;
  for (auto entry = chain.rbegin(); entry != chain.rend(); ++entry) touch(*entry);
  if (chain.empty()) return;
  // Ancestors become newer than what hangs below them, so that leaves are always older.
  EntryIndex above = index_.at(chain.front()).parent;
  for (; above != kNoEntry; above = index_.at(above).parent) touch(above);
}

void BlockLife::touch(EntryIndex entry) {
  BlockEntry& used = index_.at(entry);
  if (used.is_detached) return;
  for (const TierId tier : kTiers) {
    if (!used.is_resident(tier)) continue;
    space(tier).policy_of(used).touch(entry);
  }
  set_last_use(used);
}

/// The use sums of segments follow in every tier where the block is resident.
void BlockLife::set_last_use(BlockEntry& used) {
  for (const TierId tier : kTiers) {
    if (!used.is_resident(tier)) continue;
    Segment& segment = space(tier).slots.segment(used.slot(tier).segment_index);
    segment.use_sum += use_counter_;
    segment.use_sum -= used.last_use;
  }
  used.last_use = use_counter_;
}

void BlockLife::set_pin_count(EntryIndex entry, std::uint16_t pin_count) {
  BlockEntry& pinned = index_.at(entry);
  charge_pins(pinned, false);
  pinned.pin_count = pin_count;
  charge_pins(pinned, true);
  // The commit of a block carries the number of its pins.
  TierSpace& disk = space(TierId::kDisk);
  if (pinned.is_resident(TierId::kDisk) && disk.on_change) {
    disk.on_change(pinned.slot(TierId::kDisk), SlotChange::kStored);
  }
}

/// Adds the block to, or takes it from, the pinned bytes of the tier whose copy its pins protect.
void BlockLife::charge_pins(const BlockEntry& pinned, bool is_added) {
  if (pinned.pin_count == 0) return;
  TierSpace& in = space(pinned.pinned_tier());
  const std::uint64_t slot_bytes = in.slots.slot_bytes(pinned.slot(in.id));
  in.stats.pinned_bytes += is_added ? slot_bytes : 0 - slot_bytes;
}

void BlockLife::leave_tier(EntryIndex entry, TierId tier, SlotChange change) {
  BlockEntry& leaving = index_.at(entry);
  KVTIER_CHECK(leaving.pin_count == 0 || leaving.pinned_tier() != tier);
  TierSpace& in = space(tier);
  in.policy_of(leaving).remove(entry);
  in.slots.segment(leaving.slot(tier).segment_index).use_sum -= leaving.last_use;
  if (leaving.is_resident(TierId::kHost) && leaving.is_resident(TierId::kDisk)) --num_in_both_;
  leaving.set_state(tier, CopyState::kLeaving);
  --in.stats.blocks;
  if (in.on_change) in.on_change(leaving.slot(tier), change);
}

void BlockLife::free_slot(EntryIndex entry, TierId tier) {
  BlockEntry& freed = index_.at(entry);
  freed.set_state(tier, CopyState::kAbsent);
  if (tier == TierId::kDisk && !freed.is_detached) note_disk_slot(entry, false);
  space(tier).slots.release(freed.slot(tier));
}

void BlockLife::settle(EntryIndex entry) {
  BlockEntry& settled = index_.at(entry);
  if (settled.num_holds > 0) return;
  if (settled.num_leases[0] > 0 || settled.num_leases[1] > 0) return;
  for (const TierId tier : kTiers) {
    if (settled.tier_state(tier) == CopyState::kLeaving) free_slot(entry, tier);
  }
  index_.free(entry);
  --num_leaving_;
}

void BlockLife::note_disk_slot(EntryIndex entry, bool has_slot) {
  const EntryIndex parent = index_.at(entry).parent;
  if (parent == kNoEntry) return;
  BlockEntry& above = index_.at(parent);
  if (has_slot) {
    ++above.num_disk_children;
  } else {
    KVTIER_CHECK(above.num_disk_children > 0);
    --above.num_disk_children;
  }
}

}  // namespace kvtier::store
