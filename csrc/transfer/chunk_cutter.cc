// Arithmetic on leaves. Thread-safe.
#include "transfer/chunk_cutter.h"

#include <algorithm>

#include "base/check.h"
#include "device/block_copy.h"

namespace kvtier::transfer {

std::uint64_t leaf_place_bytes(const FragmentTable& table, std::uint64_t leaf) {
  const std::uint64_t block_index = leaf / table.leaves_per_block();
  const auto leaf_index = static_cast<std::uint32_t>(leaf % table.leaves_per_block());
  return block_index * table.block_bytes() + table.leaf(leaf_index).offset_bytes;
}

LeafRange cut_chunk(const FragmentTable& table, const LeafRange& rest, std::uint64_t bytes_max,
                    std::uint64_t leaves_max) {
  KVTIER_CHECK(rest.begin < rest.end);
  KVTIER_CHECK(leaves_max > 0);
  const std::uint64_t per_block = table.leaves_per_block();
  const std::uint64_t first_block = rest.begin / per_block;
  const std::uint64_t limit =
      std::min({rest.end, rest.begin + leaves_max, (first_block + kBlockPlacesMax) * per_block});
  const std::uint64_t begin_bytes = leaf_place_bytes(table, rest.begin);
  // The last end that still fits; places only grow.
  std::uint64_t fitting = rest.begin + 1;
  std::uint64_t beyond = limit + 1;
  while (fitting + 1 < beyond) {
    const std::uint64_t middle = fitting + (beyond - fitting) / 2;
    if (leaf_place_bytes(table, middle) - begin_bytes <= bytes_max) {
      fitting = middle;
    } else {
      beyond = middle;
    }
  }
  const std::uint64_t whole = fitting / per_block * per_block;
  return {rest.begin, whole > rest.begin ? whole : fitting};
}

std::uint64_t choose_chunk_bytes(std::uint64_t chunk_index, std::uint64_t rest_bytes,
                                 std::uint64_t chunk_bytes_max) {
  constexpr std::uint64_t kFirstChunkBytes = 1u << 20;
  const std::uint64_t growing_bytes =
      chunk_index < 8 ? kFirstChunkBytes << chunk_index : chunk_bytes_max;
  const std::uint64_t shrinking_bytes = std::max(kFirstChunkBytes, rest_bytes / 2);
  return std::min({chunk_bytes_max, growing_bytes, shrinking_bytes});
}

}  // namespace kvtier::transfer
