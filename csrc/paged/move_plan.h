// MovePlan: one move of a store as plain data for other processes, and what each of them answers.
// Values; thread-safe as such.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "memory/shared_memory.h"
#include "transfer/transfer_types.h"

namespace kvtier::paged {

using PlanId = std::uint64_t;  // Never used twice by a store; 0 is none.

/// Some blocks of a call, to be moved by the ranks 0 .. num_ranks - 1, each the parts it has.
struct MovePlan {
  PlanId plan_id = 0;
  ArenaId arena_id;  // Of the store's first arena; another after each opening.
  /// How often a rank had been abandoned when the plan was made: a process that took over the place
  /// of one that died answers for no plan that is older than itself.
  std::uint64_t generation = 0;
  transfer::TransferDirection direction = transfer::TransferDirection::kSave;
  std::uint32_t num_ranks = 1;
  NamespaceId namespace_id;
  /// Of all parts of a block: who cuts it otherwise would move other stretches.
  std::vector<std::uint64_t> part_bytes;
  std::vector<std::size_t> block_indices;   // Positions in the call's keys.
  std::vector<std::uint64_t> slot_offsets;  // One a block, in the store's memory; see PlanTable.
  std::vector<BlockKey> keys;               // One a block; empty: no checksums.
  /// Loads with checksums: uint64[num_blocks, num_parts], what the bytes must sum up to.
  std::vector<std::uint64_t> checksums;
};

/// Parts of each block, one after the other.
struct PartRange {
  std::size_t first = 0;
  std::size_t num_parts = 0;
  bool operator==(const PartRange&) const = default;
};

/// What one rank made of a plan.
struct RankResult {
  PlanId plan_id = 0;
  ArenaId arena_id;
  std::uint32_t rank = 0;
  /// Ok: all its parts were moved. kCorrupt: some of a load are not what was saved. Else nothing of
  /// them can be relied on.
  Status status = Status::ok();
  PartRange parts;
  /// Saves with checksums that are ok: uint64[num_blocks, parts.num_parts].
  std::vector<std::uint64_t> checksums;
  /// Loads: positions in the call's keys whose memory on that rank holds nothing to rely on.
  std::vector<std::size_t> undefined_indices;
};

}  // namespace kvtier::paged
