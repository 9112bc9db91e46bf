// Buffers that are reused, and blocks of which a part is bad: all of a block or none of it.
#include <algorithm>

#include "store/store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

TEST_CASE("A11: a staging buffer is not used again before its write has ended") {
  SimOptions sim;
  sim.latency_min_ns = 5 * kNsPerMs;
  sim.latency_max_ns = 50 * kNsPerMs;
  StoreWorld world(7, sim);
  world.options.host_bytes = 0;
  world.options.staging_bytes = 64 << 10;  // Six blocks: each buffer serves dozens of writes.
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(10'000);
  CHECK(count_done(world.put(space, 0, 200, 10'000)) == 200);
  CHECK(count_done(world.get(space, 0, 200, 10'000)) == 200);
  CHECK(world.store->stats().disk.corrupt == 0);
}

namespace {

constexpr std::uint64_t kBlockBytes = 12'000;

std::uint32_t add_parted_namespace(StoreWorld& world) {
  const std::vector<std::uint64_t> parts = {4000, 0, 8000};
  return world.add_namespace(kBlockBytes, 1, parts);
}

// A chain of six blocks on disk, and the store closed.
void write_chain(StoreWorld& world) {
  REQUIRE(world.open().is_ok());
  CHECK(count_done(world.put(add_parted_namespace(world), 0, 6, kBlockBytes)) == 6);
  REQUIRE(world.store->flush(30 * kNsPerS).is_ok());
  REQUIRE(world.store->close(5 * kNsPerS).is_ok());
  world.store.reset();
}

void spoil_last_part_of_block_3(StoreWorld& world) {
  const auto payload = payload_of(3, kBlockBytes);
  std::size_t num_flipped = 0;
  for (auto& [name, bytes] : world.disk->files()) {
    const auto found = std::search(bytes.begin(), bytes.end(), payload.begin(), payload.end());
    if (found == bytes.end()) continue;
    *(found + 11'000) ^= std::byte{1};
    ++num_flipped;
  }
  REQUIRE(num_flipped == 1);
}

}  // namespace

TEST_CASE("A6: a lookup before a part is lost promises what the get does not give") {
  StoreWorld world;
  write_chain(world);
  REQUIRE(world.open().is_ok());
  const std::uint32_t space = add_parted_namespace(world);
  CHECK(world.lookup(space, 0, 6) == 6);
  spoil_last_part_of_block_3(world);
  const auto outcomes = world.get(space, 0, 6, kBlockBytes);
  CHECK(count_done(outcomes) == 3);
  CHECK(outcomes[3] == Outcome::kCorrupt);
  // The state without its other parts is of no use, nor is what came after it.
  CHECK(world.lookup(space, 0, 6) == 3);
}

TEST_CASE("H4: a chain with one bad part ends before that block and says why") {
  StoreWorld world;
  write_chain(world);
  spoil_last_part_of_block_3(world);
  REQUIRE(world.open().is_ok());
  const auto outcomes = world.get(add_parted_namespace(world), 0, 6, kBlockBytes);
  CHECK(count_done(outcomes) == 3);
  CHECK(outcomes[3] == Outcome::kCorrupt);
  CHECK(outcomes[4] == Outcome::kMiss);
}
