// A full tier and a new block size: somebody has to make room.
#include "store/store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

TEST_CASE("a new block size is served on a disk full of one long chain of another") {
  StoreWorld world;
  world.options.host_bytes = 0;
  world.options.disk_bytes = 8 << 20;
  REQUIRE(world.open().is_ok());
  const auto small = world.add_namespace(16 << 10, 1);
  const auto large = world.add_namespace(300 << 10, 2);
  // One chain over every segment: each segment but the last holds only parents.
  world.put(small, 0, 450, 16 << 10);
  REQUIRE(world.store->flush(30 * kNsPerS).is_ok());
  CHECK(world.lookup(small, 0, 450) > 400);
  CHECK(count_done(world.put(large, 5000, 3, 300 << 10)) == 3);
  CHECK(count_done(world.get(large, 5000, 3, 300 << 10)) == 3);
  CHECK(world.disk->allocated_bytes() <= world.options.disk_bytes);
  CHECK(world.store->check_consistency().is_ok());
  world.get(small, 0, 450, 16 << 10);
}

TEST_CASE("a slow disk with a long queue is slow, not stalled") {
  SimOptions sim;
  sim.bytes_per_s = 2e6;
  StoreWorld world(1, sim);
  world.options.host_bytes = 64 << 20;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(1 << 20);
  CHECK(count_done(world.put(space, 0, 16, 1 << 20)) == 16);
  const auto flushed = world.store->flush(60 * kNsPerS);
  CHECK_MESSAGE(flushed.is_ok(), flushed.status().to_string());
  for (const std::string& line : world.log) CHECK(line.find("stalled") == std::string::npos);
}
