// One seed a part. Thread-safe.
#include "store/block_checksums.h"

#include "base/checksum.h"

namespace kvtier::store {

std::vector<std::uint64_t> checksum_block(const Namespace& space, const BlockKey& key,
                                          const std::byte* bytes) {
  std::vector<std::uint64_t> checksums;
  checksums.reserve(space.part_bytes.size());
  ChecksumSeed seed{key, space.id, 0};
  for (const std::uint64_t part_bytes : space.part_bytes) {
    checksums.push_back(checksum_part({bytes, part_bytes}, seed));
    bytes += part_bytes;
    ++seed.part_index;
  }
  return checksums;
}

std::vector<std::uint64_t> copy_and_checksum_block(const Namespace& space, const BlockKey& key,
                                                   std::byte* target, const std::byte* source) {
  std::vector<std::uint64_t> checksums;
  checksums.reserve(space.part_bytes.size());
  ChecksumSeed seed{key, space.id, 0};
  for (const std::uint64_t part_bytes : space.part_bytes) {
    checksums.push_back(copy_and_checksum_part({target, part_bytes}, {source, part_bytes}, seed));
    target += part_bytes;
    source += part_bytes;
    ++seed.part_index;
  }
  return checksums;
}

}  // namespace kvtier::store
