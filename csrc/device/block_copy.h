// BlockCopy: the op that moves the leaves of blocks between their fragments and contiguous memory
// and hashes them on the way. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtier {

enum class BlockCopyKind : std::uint8_t {
  kGather,   // Fragments to contiguous memory.
  kScatter,  // Contiguous memory to fragments.
  kHash,     // Reads the fragments, writes nothing but digests.
};

/// One block of an op: its id, and where host order begins in contiguous memory. `linear` may point
/// before the memory there is, as long as the op's leaves lie in it.
struct BlockPlace {
  std::int64_t block_id = 0;
  std::byte* linear = nullptr;
};

struct BlockCopy {
  BlockCopyKind kind = BlockCopyKind::kGather;
  std::uint32_t table_id = 0;  // Of Device::create_fragment_table().
  std::span<const BlockPlace> places;
  // Leaves are counted through all places: leaf i is leaf i % leaves_per_block of place
  // i / leaves_per_block.
  std::uint32_t first_leaf = 0;
  std::uint32_t num_leaves = 0;
  /// uint64[num_leaves] in memory of the device or page-locked; null: nothing is hashed.
  std::uint64_t* digests = nullptr;
  std::uint32_t num_ctas = 1;  // Groups of threads, each of which keeps one processor busy.
};

/// What one op may name; a longer list is several ops.
inline constexpr std::size_t kBlockPlacesMax = 224;

}  // namespace kvtier
