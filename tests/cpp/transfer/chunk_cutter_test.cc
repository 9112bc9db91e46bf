// Which leaves make a chunk, and how large chunks should be.
#include "transfer/chunk_cutter.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "device/block_copy.h"

namespace kvtier::testing {
namespace {

using transfer::choose_chunk_bytes;
using transfer::ChunkSteps;
using transfer::cut_chunk;
using transfer::LeafRange;

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kMax = 16 * kMiB;

FragmentTable make_blocks(std::uint64_t block_bytes, std::uint64_t num_blocks) {
  return FragmentTable::create({{reinterpret_cast<std::byte*>(4096), block_bytes, block_bytes}},
                               {&block_bytes, 1}, num_blocks)
      .value();
}

std::vector<std::uint64_t> chunks_of(ChunkSteps steps, std::uint64_t num_bytes) {
  std::vector<std::uint64_t> chunks;
  while (num_bytes > 0) {
    chunks.push_back(choose_chunk_bytes(steps, chunks.size(), num_bytes, kMax));
    REQUIRE(chunks.back() > 0);
    REQUIRE(chunks.back() <= std::min(kMax, num_bytes));
    num_bytes -= chunks.back();
  }
  return chunks;
}

TEST_CASE("chunks cover every leaf once and keep to all limits") {
  for (const std::uint64_t block_bytes : {700ull, 4096ull, 28672ull, 917504ull, 29360128ull}) {
    const std::uint64_t num_blocks = 400 * kMiB / block_bytes / 4 + 1;
    const FragmentTable table = make_blocks(block_bytes, num_blocks);
    const std::uint64_t end = num_blocks * table.leaves_per_block();
    for (LeafRange rest{0, end}; rest.begin < end;) {
      const LeafRange chunk = cut_chunk(table, rest, kMax, kMax / 4096);
      REQUIRE(chunk.begin == rest.begin);
      REQUIRE(chunk.end > chunk.begin);
      REQUIRE(chunk.end <= end);
      REQUIRE(chunk.end - chunk.begin <= kMax / 4096);
      const std::uint64_t first_block = chunk.begin / table.leaves_per_block();
      REQUIRE((chunk.end - 1) / table.leaves_per_block() - first_block < kBlockPlacesMax);
      rest.begin = chunk.end;
    }
  }
}

TEST_CASE("a chunk ends with a block unless that would cost much of it") {
  const FragmentTable small = make_blocks(917504, 100);
  CHECK(cut_chunk(small, {0, 22400}, kMax, 4096).end == 18 * 224);
  // The first block ends after a quarter of what fits.
  const FragmentTable large = make_blocks(7 * kMiB, 100);
  CHECK(cut_chunk(large, {1536, 179200}, 2 * kMiB, 4096).end == 1536 + 512);
  CHECK(cut_chunk(large, {0, 179200}, kMax, 4096).end == 2 * 1792);
}

TEST_CASE("chunks are small only where the link would wait for a kernel") {
  const auto one = chunks_of(ChunkSteps::kOne, 224 * kMiB);
  CHECK(one.size() == 14);
  const auto first = chunks_of(ChunkSteps::kKernelFirst, 224 * kMiB);
  CHECK(first.front() == kMiB);
  CHECK(first[1] == 3 * kMiB);
  CHECK(first[3] == kMax);
  CHECK(first.size() <= 17);
  const auto last = chunks_of(ChunkSteps::kKernelLast, 224 * kMiB);
  CHECK(last.front() == kMax);
  CHECK(last.back() <= kMiB * 5 / 4);
  CHECK(last.size() <= 17);
  CHECK(chunks_of(ChunkSteps::kKernelFirst, kMiB).size() == 1);
  CHECK(chunks_of(ChunkSteps::kKernelLast, kMiB).size() == 1);
}

}  // namespace
}  // namespace kvtier::testing
