// EarlierUses: what an earlier run noted of the blocks on disk, by the tags of their keys. Built at
// open and dropped when the blocks are ranked. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "format/uses_file.h"
#include "store/block_entry.h"

namespace kvtier::store {

/// A block's place among all, and what is known of its uses.
struct EarlierUse {
  std::uint64_t order = 0;  // Rises from what was used least recently.
  BlockUse use;
};

class EarlierUses {
 public:
  /// Nothing is known: blocks are in the order of their commits.
  EarlierUses() = default;
  /// Nothing when a record cannot have come from a store.
  static std::optional<EarlierUses> create(const format::UsesFile& file);
  /// The clock of uses, where a history goes on: 0 at first.
  void set_now(std::uint32_t now) { now_ = now; }

  /// A block that the file does not name is older than those that it does, unless it was committed
  /// later: then it is younger, and counts as used just now.
  EarlierUse find(std::uint32_t key_tag, std::uint64_t disk_generation) const;

 private:
  static constexpr std::uint32_t kNowhere = UINT32_MAX;

  std::uint64_t generation_ = 0;
  std::uint32_t now_ = 0;
  std::uint32_t oldest_age_ = 0;
  std::vector<format::UsedBlock> blocks_;
  std::vector<std::uint32_t> buckets_;  // Power of two; the latest block of each.
  std::vector<std::uint32_t> next_;     // The next older block of the bucket.
};

}  // namespace kvtier::store
