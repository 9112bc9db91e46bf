// BlockLife: every transition of a block's copies, in one place: fills, evictions, removals, holds
// and leases, with the family rules (a child is resident only under its parent). Guarded by the
// store's mutex.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "store/block_index.h"
#include "store/tier_space.h"

namespace kvtier::store {

class BlockLife {
 public:
  BlockLife(BlockIndex& index, TierSpace& host, TierSpace& disk)
      : index_(index), tiers_{&host, &disk} {}

  /// A hold keeps both copies and the slots of an entry; also of one that is detached meanwhile.
  void hold(EntryIndex entry);
  void unhold(EntryIndex entry);
  /// Gives back a detached entry that never had a slot, with the caller's hold on it.
  void forget_new(EntryIndex entry);
  void lease(EntryIndex entry, TierId tier);
  void unlease(EntryIndex entry, TierId tier);
  /// One pin more. Requires: resident somewhere, and fewer pins than a slot table can say.
  void pin(EntryIndex entry);
  /// One pin less. Requires that there is one.
  void unpin(EntryIndex entry);
  /// Ends all pins of the block.
  void end_pins(EntryIndex entry);

  /// ABSENT -> FILLING in `slot`, which the caller reserved for it.
  void begin_fill(EntryIndex entry, TierId tier, SlotRef slot);
  /// Another slot for a fill under way; the old one is free.
  void move_fill(EntryIndex entry, TierId tier, SlotRef slot);
  /// FILLING -> RESIDENT. Requires: not detached.
  void finish_fill(EntryIndex entry, TierId tier);
  /// FILLING -> ABSENT; the slot is free, and an entry without any copy goes with its descendants.
  /// Requires: not detached, and no hold but the caller's own, which it drops itself afterwards.
  void abort_fill(EntryIndex entry, TierId tier);

  /// Recovery only: the block lies in `slot` on disk already, with its pins set. Until
  /// rank_recovered() it has no place in the eviction order.
  void adopt_disk_copy(EntryIndex entry, SlotRef slot);
  /// Recovery only: undoes adopt_disk_copy; the slot is free and its old commit stale.
  void disown_disk_copy(EntryIndex entry);
  /// Recovery only, oldest first, after parents are linked.
  void rank_recovered(EntryIndex entry);

  bool is_evictable(EntryIndex entry, TierId tier) const;
  /// RESIDENT -> ABSENT. Requires is_evictable.
  void evict(EntryIndex entry, TierId tier);
  /// RESIDENT -> ABSENT regardless of what it protects: its tier is being given up. Requires no
  /// hold, no lease and no pin on it. Descendants that lose their footing are the caller's duty.
  void drop_copy(EntryIndex entry, TierId tier, SlotChange change);
  /// Removes `root` and its descendants from lookups at once; busy slots follow. Returns how many.
  std::size_t remove_family(EntryIndex root);
  /// Moves a resident block to another slot of its class in the same tier. Requires no hold.
  void relocate(EntryIndex entry, TierId tier, SlotRef target);

  /// Records a use of `chain` (parents before children) and of its ancestors.
  void touch_chain(std::span<const EntryIndex> chain);

  TierSpace& space(TierId tier) { return *tiers_[static_cast<std::size_t>(tier)]; }
  BlockIndex& index() { return index_; }
  /// Blocks that are resident in both tiers.
  std::uint64_t num_in_both() const { return num_in_both_; }
  /// Removed blocks whose slots are still busy.
  std::uint64_t num_leaving() const { return num_leaving_; }

 private:
  void touch(EntryIndex entry);
  void set_last_use(BlockEntry& used);
  void set_pin_count(EntryIndex entry, std::uint16_t pin_count);
  void charge_pins(const BlockEntry& pinned, bool is_added);
  void leave_tier(EntryIndex entry, TierId tier, SlotChange change);
  void free_slot(EntryIndex entry, TierId tier);
  void settle(EntryIndex entry);
  void note_disk_slot(EntryIndex entry, bool has_slot);

  BlockIndex& index_;
  TierSpace* tiers_[kNumTiers];
  std::uint32_t use_counter_ = 0;
  std::uint64_t num_leaving_ = 0;
  std::uint64_t num_in_both_ = 0;
};

}  // namespace kvtier::store
