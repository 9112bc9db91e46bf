// Chunks: whole leaves, within every bound, nothing left out.
#include "transfer/chunk_cutter.h"

#include <doctest/doctest.h>

#include <vector>

#include "base/random.h"
#include "device/block_copy.h"

namespace kvtier::testing {
namespace {

using transfer::choose_chunk_bytes;
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

TEST_CASE("a chunk ends with a block when it has one whole, else with a leaf") {
  const FragmentTable table = make_table_of({16384});
  const LeafRange all{0, 400};
  CHECK(cut_chunk(table, all, 40000, 1000).end == 8);
  CHECK(cut_chunk(table, all, 32768, 1000).end == 8);
  CHECK(cut_chunk(table, all, 32767, 1000).end == 4);
  CHECK(cut_chunk(table, all, 16383, 1000).end == 3);
  CHECK(cut_chunk(table, {6, 400}, 20000, 1000).end == 8);
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

TEST_CASE("chunks are small at both ends and never beyond their bound") {
  constexpr std::uint64_t kMax = 8 << 20;
  CHECK(choose_chunk_bytes(0, 1 << 30, kMax) < kMax);
  CHECK(choose_chunk_bytes(20, 1 << 30, kMax) == kMax);
  CHECK(choose_chunk_bytes(20, 2 << 20, kMax) < kMax);
  for (std::uint64_t index = 0; index < 100; ++index) {
    for (std::uint64_t rest = 1; rest < 1ull << 40; rest *= 7) {
      const std::uint64_t chosen = choose_chunk_bytes(index, rest, kMax);
      CHECK(chosen > 0);
      CHECK(chosen <= kMax);
    }
  }
}

}  // namespace
}  // namespace kvtier::testing
