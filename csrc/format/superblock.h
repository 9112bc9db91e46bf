// Superblock: the identity and state of a store directory. Bytes <-> values, pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/digest.h"
#include "base/status.h"

namespace kvtier::format {

/// Format version of everything that this build writes.
inline constexpr std::uint32_t kFormatVersion = 1;
/// Each of the two copies in the superblock file takes this much.
inline constexpr std::size_t kSuperblockBytes = 4096;
inline constexpr const char* kSuperblockFileName = "kvtier.superblock";
inline constexpr const char* kLockFileName = "kvtier.lock";

struct Superblock {
  Digest128 store_id;          // Random, made at creation.
  std::uint64_t sequence = 0;  // Of the two copies the valid one with the higher sequence counts.
  bool is_clean = false;       // Written by close(); cleared by open().
  /// Generations at or below it were handed out before; a reopened store starts above.
  std::uint64_t generation_max = 0;
};

/// Writes exactly kSuperblockBytes.
void encode_superblock(const Superblock& superblock, std::span<std::byte> target);
/// kUnsupported: a sound superblock of another version. kCorrupt: not a superblock, or damaged.
Result<Superblock> decode_superblock(std::span<const std::byte> source);

}  // namespace kvtier::format
