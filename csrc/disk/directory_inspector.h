// Directory inspector: what lies in a store's directory, read from its files alone, for the command
// line. Free functions without state; blocking; thread-safe as far as Directory is.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "io/directory.h"

namespace kvtier::disk {

struct NamespaceContents {
  std::uint32_t namespace_index = 0;
  NamespaceId id;
  std::string description;
  std::uint64_t num_blocks = 0;
  std::uint64_t num_pinned = 0;  // Of those.
  std::uint64_t payload_bytes = 0;
  std::uint64_t num_chains = 0;  // Blocks without a parent.
  std::uint64_t chain_blocks_max =
      0;                              // In the longest line from such a block on; 0: not asked for.
  std::vector<std::string> segments;  // That hold any of its blocks.
};

enum class InspectDepth : std::uint8_t { kCounts, kChains };

struct SegmentContents {
  std::string name;
  std::uint64_t slot_bytes = 0;
  std::uint64_t num_slots = 0;
  std::uint64_t num_used = 0;
  std::uint64_t num_damaged = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t allocated_bytes = 0;
};

struct DirectoryContents {
  Digest128 store_id;
  bool is_clean = false;
  std::vector<NamespaceContents> namespaces;
  std::vector<SegmentContents> segments;
  /// Files with names of ours that this build cannot read: other versions, damaged headers,
  /// segments of another store.
  std::vector<std::string> unknown_files;
};

/// Takes no lock: beside a running store the answer may mix two instants.
/// Returns kNotFound (no store there), kUnsupported (a store of another version), kCorrupt,
/// kIoError.
Result<DirectoryContents> inspect_directory(Directory& directory,
                                            InspectDepth depth = InspectDepth::kCounts);

struct DamagedBlock {
  std::string segment;
  std::uint32_t slot_index = 0;
  BlockKey key;
  NamespaceId namespace_id;  // Zero when the namespace table does not know its index.
  std::string reason;
};

struct VerifyReport {
  bool is_clean = false;
  std::uint64_t num_blocks = 0;     // Checked, whatever came of it.
  std::uint64_t payload_bytes = 0;  // Of these.
  std::uint64_t num_corrupt = 0;
  std::uint64_t num_torn = 0;  // In place of corrupt when the store was not closed: a slot was
                               // written anew and its entry not yet. Never served.
  std::uint64_t num_damaged_entries = 0;
  std::uint64_t num_unreadable = 0;
  std::vector<DamagedBlock> damaged;  // At most kDamagedBlocksMax of corrupt, torn and unreadable.
  std::vector<std::string> unknown_files;
};
inline constexpr std::size_t kDamagedBlocksMax = 10'000;

/// Called with blocks done and all blocks, now and then, from the calling thread.
using VerifyProgress = std::function<void(std::uint64_t num_done, std::uint64_t num_blocks)>;

/// Reads every committed block and checks it, no more than `bytes_per_s_max` (0: as fast as it
/// goes). Holds the lock meanwhile: kBusy (the holder's text).
/// Else as inspect_directory.
Result<VerifyReport> verify_directory(Directory& directory, const VerifyProgress& progress,
                                      std::uint64_t bytes_per_s_max = 0);

struct OwnFile {
  std::string name;
  std::uint64_t allocated_bytes = 0;
};

/// Files of kvtier, those of other versions included; whatever else lies there is foreign.
Result<std::vector<OwnFile>> list_own_files(Directory& directory);

/// Removes the files of list_own_files, the lock last; returns them. kBusy (the holder's text).
Result<std::vector<OwnFile>> wipe_directory(Directory& directory);

}  // namespace kvtier::disk
