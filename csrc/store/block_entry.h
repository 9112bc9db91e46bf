// BlockEntry: what the store knows of one block, addressed by a 32-bit index and free of pointers.
// Guarded by the store's mutex.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/digest.h"

namespace kvtier::store {

using EntryIndex = std::uint32_t;
inline constexpr EntryIndex kNoEntry = UINT32_MAX;

/// Index of the per-tier arrays of an entry.
enum class TierId : std::uint8_t { kHost = 0, kDisk = 1 };
inline constexpr std::size_t kNumTiers = 2;

/// Life of a copy in one tier: ABSENT -> FILLING -> RESIDENT -> LEAVING -> ABSENT, and FILLING ->
/// ABSENT when the fill failed. LEAVING: gone for every lookup, its slot still busy.
enum class CopyState : std::uint8_t { kAbsent, kFilling, kResident, kLeaving };

constexpr bool is_legal_transition(CopyState from, CopyState to) {
  switch (to) {
    case CopyState::kFilling:
      return from == CopyState::kAbsent;
    case CopyState::kResident:
      return from == CopyState::kFilling;
    case CopyState::kLeaving:
      return from == CopyState::kResident || from == CopyState::kFilling;
    case CopyState::kAbsent:
      return from != CopyState::kAbsent;
  }
  return false;
}

struct SlotRef {
  std::uint32_t slot_index = 0;
  std::uint16_t segment_index = 0;
};

struct RecencyLinks {
  EntryIndex newer = kNoEntry;
  EntryIndex older = kNoEntry;
};

/// What the store remembers of a block's uses; outlives the entry in ReuseHistory.
struct BlockUse {
  std::uint32_t position = 0;  // Of the last use, on the clock that counts uses.
  std::uint8_t use_class = 0;  // See use_class.h.
  std::uint8_t num_uses = 1;   // By distinct requests; saturates.
};

struct BlockEntry {
  // What a lookup reads lies together at the start.
  BlockKey key;
  EntryIndex hash_next = kNoEntry;
  std::uint16_t namespace_index = 0;
  CopyState state[kNumTiers] = {CopyState::kAbsent, CopyState::kAbsent};
  bool is_detached : 1 = false;    // Out of hash and tree: only busy slots and leases keep it.
  bool is_queued : 1 = false;      // Waits for, or is in, its disk write.
  bool is_deferred : 1 = false;    // Declined by a full backlog; offered again when there is room.
  bool is_write_done : 1 = false;  // Written, but its parent's write has not been applied yet.
  bool is_disk_unwanted : 1 =
      false;                      // Cleared while its disk write runs: that write comes to nothing.
  bool is_recovered : 1 = false;  // Its commit was found after an unclean close.
  std::uint16_t pin_count = 0;    // As wide as in the slot table.
  EntryIndex parent = kNoEntry;

  std::uint64_t checksum = 0;         // Of the only part; more parts: BlockIndex::part_checksums.
  std::uint64_t disk_generation = 0;  // Of the disk copy.
  EntryIndex first_child = kNoEntry;
  EntryIndex next_sibling = kNoEntry;
  EntryIndex previous_sibling = kNoEntry;
  RecencyLinks links[kNumTiers];
  BlockUse use;
  std::uint16_t queue[kNumTiers] = {0, 0};  // Where the tier's eviction policy keeps it.
  std::uint32_t slot_index[kNumTiers] = {0, 0};
  std::uint32_t num_disk_children = 0;  // Children with a slot on disk.
  std::uint32_t last_use = 0;           // The store's use counter at the last touch.
  std::uint32_t num_holds = 0;
  std::uint16_t segment_index[kNumTiers] = {0, 0};
  std::uint16_t num_leases[kNumTiers] = {0, 0};

  CopyState tier_state(TierId tier) const { return state[static_cast<std::size_t>(tier)]; }
  bool is_resident(TierId tier) const { return tier_state(tier) == CopyState::kResident; }
  bool is_resident_anywhere() const {
    return is_resident(TierId::kHost) || is_resident(TierId::kDisk);
  }
  /// Whose copy a pin protects: the one on disk as soon as there is one, because only that one
  /// outlives a restart.
  TierId pinned_tier() const { return is_resident(TierId::kDisk) ? TierId::kDisk : TierId::kHost; }
  void set_state(TierId tier, CopyState to) {
    CopyState& from = state[static_cast<std::size_t>(tier)];
    KVTIER_CHECK(is_legal_transition(from, to));
    from = to;
  }
  SlotRef slot(TierId tier) const {
    const auto t = static_cast<std::size_t>(tier);
    return SlotRef{slot_index[t], segment_index[t]};
  }
  void set_slot(TierId tier, SlotRef slot) {
    const auto t = static_cast<std::size_t>(tier);
    slot_index[t] = slot.slot_index;
    segment_index[t] = slot.segment_index;
  }
  bool has_children() const { return first_child != kNoEntry; }
};

static_assert(offsetof(BlockEntry, parent) <= 32, "a lookup reads half a cache line");
static_assert(sizeof(BlockEntry) <= 120,
              "the index promises at most 128 bytes a block, buckets included");

}  // namespace kvtier::store
