// Chunks: whole leaves, within every bound, nothing left out.
#include "transfer/chunk_cutter.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"
#include "device/block_copy.h"

namespace kvtier::testing {
namespace {

using transfer::choose_chunk_bytes;
using transfer::ChunkSteps;
using transfer::cut_chunk;
using transfer::leaf_place_bytes;
using transfer::LeafRange;

FragmentTable make_table_of(const std::vector<std::uint64_t>& part_bytes) {
  std::uint64_t block_bytes = 0;
  for (const std::uint64_t length_bytes : part_bytes) block_bytes += length_bytes;
  auto* base = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 30);
  auto table = FragmentTable::create({{base, block_bytes, block_bytes}}, part_bytes, 1 << 20);
  REQUIRE_MESSAGE(table.is_ok(), table.status().to_string());
  return std::move(table).value();
}

TEST_CASE("leaves begin anew with each part and each block") {
  const FragmentTable table = make_table_of({5000, 0, 4096});
  REQUIRE(table.leaves_per_block() == 3);
  CHECK(leaf_place_bytes(table, 0) == 0);
  CHECK(leaf_place_bytes(table, 1) == 4096);
  CHECK(leaf_place_bytes(table, 2) == 5000);
  CHECK(leaf_place_bytes(table, 3) == 9096);
  CHECK(leaf_place_bytes(table, 3 * 7 + 1) == 7 * 9096 + 4096);
}

TEST_CASE("a chunk ends with a block unless that would cost much of it") {
  const FragmentTable table = make_table_of({16384});
  const LeafRange all{0, 400};
  CHECK(cut_chunk(table, all, 40000, 1000).end == 8);
  CHECK(cut_chunk(table, all, 32768, 1000).end == 8);
  // The block before would be half of what fits.
  CHECK(cut_chunk(table, all, 32767, 1000).end == 7);
  CHECK(cut_chunk(table, all, 16383, 1000).end == 3);
  CHECK(cut_chunk(table, {6, 400}, 20000, 1000).end == 10);
  CHECK(cut_chunk(table, {5, 400}, 16384, 1000).end == 8);
  CHECK(cut_chunk(table, all, 1 << 30, 10).end == 8);
  CHECK(cut_chunk(table, {396, 400}, 1 << 30, 1000).end == 400);
  // One leaf at least, whatever the bound.
  CHECK(cut_chunk(table, all, 1, 1000).end == 1);
}

TEST_CASE("chunks hold every leaf once and keep to their bounds") {
  constexpr std::uint64_t kSeed = 99;
  Random random(kSeed);
  for (int turn = 0; turn < 400; ++turn) {
    CAPTURE(kSeed);
    CAPTURE(turn);
    std::vector<std::uint64_t> parts(1 + random.below(4));
    for (std::uint64_t& length : parts) length = random.below(3) == 0 ? 0 : random.below(20000);
    parts.back() += 1;
    const FragmentTable table = make_table_of(parts);
    const std::uint64_t num_leaves = table.leaves_per_block() * random.between(1, 700);
    const std::uint64_t bytes_max = random.between(4096, 1 << 20);
    const std::uint64_t leaves_max = random.between(1, 300);
    LeafRange rest{0, num_leaves};
    while (rest.begin < rest.end) {
      const LeafRange chunk = cut_chunk(table, rest, bytes_max, leaves_max);
      REQUIRE(chunk.begin == rest.begin);
      REQUIRE(chunk.end > chunk.begin);
      REQUIRE(chunk.end <= rest.end);
      REQUIRE(chunk.end - chunk.begin <= leaves_max);
      REQUIRE(leaf_place_bytes(table, chunk.end) - leaf_place_bytes(table, chunk.begin) <=
              bytes_max);
      const std::uint64_t first_block = chunk.begin / table.leaves_per_block();
      const std::uint64_t last_block = (chunk.end - 1) / table.leaves_per_block();
      REQUIRE(last_block - first_block < kBlockPlacesMax);
      rest.begin = chunk.end;
    }
  }
}

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kMax = 16 * kMiB;

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
