// The table of checksum code paths: one body, compiled for several instruction sets, chosen at run
// time. Internal to base and its tests. Thread-safe.
//
// Files of a vector path see only this header, the body and xxhash: an inline function of the
// standard library compiled there could be the copy that the linker keeps for everyone, and would
// then fault on a lesser machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvtier {

inline constexpr std::size_t kKernelLeafBytes = 4096;
/// Length (8), key (16), namespace (16), part index (4): what follows the leaf digests in the root.
inline constexpr std::size_t kRootTailBytes = 44;

struct ChecksumKernels {
  const char* name;
  /// `tail`: kRootTailBytes bytes.
  std::uint64_t (*checksum_part)(const unsigned char* source, std::size_t num_bytes,
                                 const unsigned char* tail);
  std::uint64_t (*copy_and_checksum_part)(unsigned char* target, const unsigned char* source,
                                          std::size_t num_bytes, const unsigned char* tail);
  /// `digests`: 8 bytes a leaf, little-endian.
  void (*digest_leaves)(const unsigned char* source, std::size_t num_bytes, unsigned char* digests);
  void (*copy_and_digest_leaves)(unsigned char* target, const unsigned char* source,
                                 std::size_t num_bytes, unsigned char* digests);
  /// Any alignment; not overlapping.
  void (*copy)(unsigned char* target, const unsigned char* source, std::size_t num_bytes);
  std::uint64_t (*checksum_metadata)(const unsigned char* source, std::size_t num_bytes,
                                     std::uint64_t purpose);
};

/// Null where the build did not give the file its instruction set. Call only after the processor
/// was found to have it.
const ChecksumKernels* avx512_checksum_kernels();
const ChecksumKernels* avx2_checksum_kernels();
/// Never null.
const ChecksumKernels* baseline_checksum_kernels();

inline constexpr std::size_t kChecksumPathsMax = 3;
/// Fills `target` (room for kChecksumPathsMax) with the paths that run on this machine, fastest
/// first, and returns their number.
std::size_t list_checksum_kernels(const ChecksumKernels** target);

}  // namespace kvtier
