// Checksums made from digests that come in pieces of any size.
#include "transfer/block_sums.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "testing/payload.h"

namespace kvtier::testing {
namespace {

using transfer::BlockSums;

constexpr std::uint64_t kNumBlocks = 5;
constexpr std::uint64_t kBlockBytes = 20000 + 700;

/// Blocks of two parts with their digests and checksums.
struct Blocks {
  Blocks() {
    const std::uint64_t part_bytes[2] = {20000, 700};
    table = FragmentTable::create({{reinterpret_cast<std::byte*>(4096), kBlockBytes, kBlockBytes}},
                                  part_bytes, kNumBlocks)
                .value();
    for (std::uint64_t block = 0; block < kNumBlocks; ++block) {
      const auto bytes = make_payload({block, 0}, kBlockBytes);
      ChecksumSeed seed;
      seed.key.bytes[0] = static_cast<std::uint8_t>(block);
      seeds.push_back(seed);
      std::uint64_t place = 0;
      for (const std::uint64_t length_bytes : part_bytes) {
        const auto part = std::span(bytes).subspan(place, length_bytes);
        std::vector<std::uint64_t> leaves(num_leaves_of(length_bytes));
        digest_leaves(part, leaves);
        digests.insert(digests.end(), leaves.begin(), leaves.end());
        sums.push_back(checksum_part(part, seed));
        place += length_bytes;
        ++seed.part_index;
      }
    }
  }
  std::optional<FragmentTable> table;
  std::vector<ChecksumSeed> seeds;
  std::vector<std::uint64_t> digests;
  std::vector<std::uint64_t> sums;
};

TEST_CASE("digests in pieces of any size sum up to the blocks' checksums") {
  const Blocks blocks;
  for (std::size_t piece = 1; piece <= blocks.digests.size(); ++piece) {
    INFO("piece: ", piece);
    BlockSums sums(*blocks.table, blocks.seeds, {});
    for (std::size_t place = 0; place < blocks.digests.size(); place += piece) {
      sums.take(
          std::span(blocks.digests).subspan(place, std::min(piece, blocks.digests.size() - place)));
    }
    CHECK(sums.take_checksums() == blocks.sums);
    CHECK(sums.wrong_blocks().empty());
  }
}

TEST_CASE("a block with one wrong digest is named and no other") {
  Blocks blocks;
  const std::size_t per_block = blocks.digests.size() / kNumBlocks;
  blocks.digests[2 * per_block] ^= 1;
  blocks.digests[5 * per_block - 1] ^= 1ull << 63;
  BlockSums sums(*blocks.table, blocks.seeds, blocks.sums);
  sums.take(std::span(blocks.digests).first(per_block + 1));
  sums.take(std::span(blocks.digests).subspan(per_block + 1));
  CHECK(sums.wrong_blocks() == std::vector<std::size_t>{2, 4});
  CHECK(sums.take_checksums().empty());
}

}  // namespace
}  // namespace kvtier::testing
