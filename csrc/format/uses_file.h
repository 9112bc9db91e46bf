// Uses file: what a store knows of its blocks' uses, for the next open. Advisory: a store that
// cannot read it serves the same bytes. Bytes <-> values, pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/status.h"

namespace kvtier::format {

inline constexpr const char* kUsesFileName = "kvtier.uses";
/// Takes the place of the other in one step once it is whole and durable.
inline constexpr const char* kNewUsesFileName = "kvtier.uses.new";
/// A larger file is called corrupt when read.
inline constexpr std::size_t kUsesFileBytesMax = 64u << 20;

/// One use of a key, stored or not.
struct UseRecord {
  std::uint32_t key_tag = 0;
  std::uint16_t request_tag = 0;
  std::uint8_t use_class = 0;
  std::uint8_t num_uses = 0;  // 0: a later use of the key replaced it; the rest is 0 too.
  friend bool operator==(const UseRecord&, const UseRecord&) = default;
};

/// A block that was on disk.
struct UsedBlock {
  std::uint32_t key_tag = 0;
  std::uint32_t age = 0;  // Uses of any key since its last one.
  std::uint8_t use_class = 0;
  std::uint8_t num_uses = 0;
  friend bool operator==(const UsedBlock&, const UsedBlock&) = default;
};

/// Counts of a use class at a step of age.
struct ReuseCount {
  std::uint16_t cell = 0;
  float at_risk = 0;
  float returns = 0;
  friend bool operator==(const ReuseCount&, const ReuseCount&) = default;
};

struct UsesFile {
  Digest128 store_id;
  std::uint64_t generation = 0;    // Of the store when it was written; later commits are younger.
  std::uint64_t num_calls = 0;     // Requests without a name so far.
  std::vector<UsedBlock> blocks;   // Least recently used first.
  std::vector<ReuseCount> counts;  // In rising order of cells.
  std::vector<UseRecord> uses;     // Oldest first.
};

std::uint64_t uses_file_bytes(const UsesFile& file);
/// Leaves out what does not fit into `bytes_max`: first the oldest uses, then the counts, then the
/// blocks that were not used for longest. False: not even an empty file fits.
bool trim_uses_file(UsesFile& file, std::uint64_t bytes_max);
std::vector<std::byte> encode_uses_file(const UsesFile& file);
/// kUnsupported: whole, of another version. kCorrupt: anything else that is not a whole one.
Result<UsesFile> decode_uses_file(std::span<const std::byte> source);

}  // namespace kvtier::format
