// Recovery: rebuilds the index from the slot tables of a store directory at open. Blocking; runs
// before the store has threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "disk/store_directory.h"
#include "io/directory.h"
#include "store/block_life.h"
#include "store/disk_tier.h"
#include "store/namespace_registry.h"
#include "store/reuse_history.h"

namespace kvtier::store {

struct RecoveryReport {
  std::uint64_t num_blocks = 0;           // In the index now.
  std::uint64_t num_damaged_entries = 0;  // Table entries whose own checksum failed.
  std::uint64_t num_orphans = 0;          // Dropped: their parent is gone.
  std::uint64_t num_removed_files = 0;    // Segments of a former store, or with a damaged header.
  std::uint64_t num_unknown_files = 0;    // Of other format versions, or unreadable: left alone.
  std::uint64_t unknown_bytes = 0;        // Allocated by those; they count against the cap.
  std::uint64_t num_shrunk_blocks = 0;    // Given up for a smaller cap.
  std::uint64_t uses_bytes_max = 0;       // What a uses file may allocate.
  /// Emptied for a smaller cap: to be left once the blocks moved out of them are durable.
  std::vector<std::uint16_t> segments_to_leave;
};

struct RecoveryContext {
  Directory& directory;
  disk::StoreDirectory& store_directory;
  BlockLife& life;
  DiskTier& tier;
  NamespaceRegistry& namespaces;
  ReuseHistory* history;  // To go on where an earlier run left it; null: none is kept.
  std::function<void(const char* level, const std::string& text)> log;
  Clock& clock;
  /// Until when blocks that are worth keeping are moved out of what a smaller cap gives up.
  TimeNs move_until_ns = kNeverNs;
  /// How the last run ended; by now the superblock on disk says "not closed" already.
  bool is_clean = true;
};

/// Requires a loaded StoreDirectory and an empty index.
Result<RecoveryReport> recover(RecoveryContext& context);

/// Ends pins beyond what the tier allows, latest first. Called by recover().
void limit_recovered_pins(RecoveryContext& context);

/// Makes the tier fit a smaller cap: gives up the segments with the least that is worth keeping,
/// and moves what is worth most of the rest, pinned blocks first, with its ancestors. Reads and
/// writes at most as much as fits under the cap, and what is not pinned not beyond the context's
/// time. Called by recover().
Status shrink_to_cap(RecoveryContext& context, RecoveryReport& report);

}  // namespace kvtier::store
