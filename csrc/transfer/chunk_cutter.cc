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
  const bool is_whole_enough =
      whole > rest.begin && (whole - rest.begin) * 4 >= (fitting - rest.begin) * 3;
  return {rest.begin, is_whole_enough ? whole : fitting};
}

std::uint64_t choose_chunk_bytes(ChunkSteps steps, std::uint64_t chunk_index,
                                 std::uint64_t rest_bytes, std::uint64_t chunk_bytes_max) {
  constexpr std::uint64_t kSmallBytes = 1u << 20;
  // Kernels are more than three times as fast as the link, so the kernel of a chunk three times as
  // large is done within the smaller one's copy.
  constexpr std::uint64_t kGrowth = 3;
  std::uint64_t wanted_bytes = chunk_bytes_max;
  if (steps == ChunkSteps::kKernelFirst) {
    wanted_bytes = kSmallBytes;
    for (std::uint64_t index = 0; index < chunk_index && wanted_bytes < chunk_bytes_max; ++index) {
      wanted_bytes *= kGrowth;
    }
  }
  if (steps == ChunkSteps::kKernelLast) {
    wanted_bytes = std::max(kSmallBytes, rest_bytes - rest_bytes / kGrowth);
  }
  // A small rest would cost as many calls as a large one.
  if (rest_bytes <= wanted_bytes + wanted_bytes / 4) wanted_bytes = rest_bytes;
  return std::min(chunk_bytes_max, wanted_bytes);
}

}  // namespace kvtier::transfer
