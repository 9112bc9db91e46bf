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

TEST_CASE("A6: a lookup before a part is lost promises what the get does not give") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const std::vector<std::uint64_t> parts = {4000, 0, 8000};
  CHECK(count_done(world.put(world.add_namespace(12'000, 1, parts), 0, 6, 12'000)) == 6);
  REQUIRE(world.store->flush(30 * kNsPerS).is_ok());
  REQUIRE(world.store->close(5 * kNsPerS).is_ok());
  world.store.reset();
  REQUIRE(world.open().is_ok());
  const std::uint32_t space = world.add_namespace(12'000, 1, parts);
  CHECK(world.lookup(space, 0, 6) == 6);
  const auto payload = payload_of(3, 12'000);
  for (auto& [name, bytes] : world.disk->files()) {
    const auto found = std::search(bytes.begin(), bytes.end(), payload.begin(), payload.end());
    if (found != bytes.end()) *(found + 11'000) ^= std::byte{1};
  }
  const auto outcomes = world.get(space, 0, 6, 12'000);
  CHECK(count_done(outcomes) == 3);
  CHECK(outcomes[3] == Outcome::kCorrupt);
  // The state without its other parts is of no use, nor is what came after it.
  CHECK(world.lookup(space, 0, 6) == 3);
}

TEST_CASE("H4: a chain with one bad part ends before that block and says why") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const std::vector<std::uint64_t> parts = {4000, 0, 8000};
  CHECK(count_done(world.put(world.add_namespace(12'000, 1, parts), 0, 6, 12'000)) == 6);
  REQUIRE(world.store->flush(30 * kNsPerS).is_ok());
  REQUIRE(world.store->close(5 * kNsPerS).is_ok());
  world.store.reset();
  const auto payload = payload_of(3, 12'000);
  std::size_t num_flipped = 0;
  for (auto& [name, bytes] : world.disk->files()) {
    const auto found = std::search(bytes.begin(), bytes.end(), payload.begin(), payload.end());
    if (found == bytes.end()) continue;
    *(found + 11'000) ^= std::byte{1};  // In the last part of block 3.
    ++num_flipped;
  }
  REQUIRE(num_flipped == 1);
  REQUIRE(world.open().is_ok());
  const auto outcomes = world.get(world.add_namespace(12'000, 1, parts), 0, 6, 12'000);
  CHECK(count_done(outcomes) == 3);
  CHECK(outcomes[3] == Outcome::kCorrupt);
  CHECK(outcomes[4] == Outcome::kMiss);
}
