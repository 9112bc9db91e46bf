// What a metadata checksum is for: the seed that keeps one structure from passing for another. Part
// of the disk format. Constants only.
#pragma once

#include <cstdint>

namespace kvtier::format {

enum class ChecksumPurpose : std::uint64_t {
  kSuperblock = 0x4b56545355504552,
  kSegmentHeader = 0x4b56545345474d54,
  kSlotEntry = 0x4b5654454e545259,
  kSlotEntryParts = 0x4b56545041525453,
  kNamespaceTable = 0x4b56544e414d4553,
  kUsesFile = 0x4b56545553455346,
  kUsesFileBody = 0x4b5655534553424f,
  kLiveFile = 0x4b564c4956454649,
};

constexpr std::uint64_t seed_of(ChecksumPurpose purpose) {
  return static_cast<std::uint64_t>(purpose);
}

}  // namespace kvtier::format
