// The block checksum: proves identity (key, namespace) and integrity of one part of a block in one
// value. Pure functions, thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/digest.h"

namespace kvtier {

/// Bytes that one leaf digest covers. Part of the disk format.
inline constexpr std::size_t kLeafBytes = 4096;

struct ChecksumSeed {
  BlockKey key;
  NamespaceId namespace_id;
  std::uint32_t part_index = 0;
};

/// Checksum of `data`: XXH3-64 of each 4,096-byte leaf (the last one zero-padded), then XXH3-64
/// over the leaf digests (little-endian), the length (8 bytes, little-endian) and the seed (key,
/// namespace, part index as 4 bytes little-endian). Any length, 0 included.
std::uint64_t checksum_part(std::span<const std::byte> data, const ChecksumSeed& seed);

/// Copies `source` to `target` (equal lengths, not overlapping) and returns checksum_part(source),
/// in one pass over memory.
std::uint64_t copy_and_checksum_part(std::span<std::byte> target, std::span<const std::byte> source,
                                     const ChecksumSeed& seed);

/// How many leaf digests a part of that length has.
constexpr std::size_t num_leaves_of(std::uint64_t length_bytes) {
  return static_cast<std::size_t>((length_bytes + kLeafBytes - 1) / kLeafBytes);
}

/// The leaf digests of `data`, in order. digests: uint64[num_leaves_of(data.size())].
void digest_leaves(std::span<const std::byte> data, std::span<std::uint64_t> digests);

/// checksum_part() of a part of `length_bytes` from its leaf digests, wherever they were computed.
/// digests: uint64[num_leaves_of(length_bytes)].
std::uint64_t checksum_digests(std::span<const std::uint64_t> digests, std::uint64_t length_bytes,
                               const ChecksumSeed& seed);

/// Copies `source` to `target` (equal lengths, not overlapping); long ones past the caches.
void copy_bytes(std::span<std::byte> target, std::span<const std::byte> source);

/// XXH3-64 of metadata (headers, tables) with its purpose as seed. Not for block bytes.
std::uint64_t checksum_metadata(std::span<const std::byte> data, std::uint64_t purpose);

/// Name of the code path in use: "avx512", "avx2", "sse2", "neon" or "scalar".
const char* checksum_path_name();

}  // namespace kvtier
