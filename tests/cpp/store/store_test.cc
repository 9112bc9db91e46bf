// The whole store on a simulated disk: puts, gets, restarts, crashes.
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

TEST_CASE("a block that was put comes back from host, and after a restart from disk") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(64 << 10);
  CHECK(count_done(world.put(space, 0, 8, 64 << 10)) == 8);
  CHECK(count_done(world.get(space, 0, 8, 64 << 10)) == 8);
  CHECK(world.store->stats().host.hits == 8);
  auto flushed = world.store->flush(30 * kNsPerS);
  REQUIRE_MESSAGE(flushed.is_ok(), flushed.status().to_string());
  CHECK(flushed.value().durable_blocks == 8);
  CHECK(flushed.value().not_kept_blocks == 0);
  REQUIRE(world.store->close(5 * kNsPerS).is_ok());
  world.store.reset();
  REQUIRE(world.open().is_ok());
  CHECK(world.store->stats().is_recovered_clean);
  CHECK(world.store->stats().recovered_blocks == 8);
  const auto again = world.add_namespace(64 << 10);
  CHECK(world.lookup(again, 0, 8) == 8);
  CHECK(count_done(world.get(again, 0, 8, 64 << 10)) == 8);
  CHECK(world.store->stats().disk.hits == 8);
  CHECK(count_done(world.get(again, 0, 8, 64 << 10)) == 8);
  CHECK(world.store->stats().host.hits == 8);
}

TEST_CASE("what flush called durable survives power loss") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    StoreWorld world(seed);
    REQUIRE(world.open().is_ok());
    const auto space = world.add_namespace(10000);
    CHECK(count_done(world.put(space, 0, 50, 10000)) == 50);
    REQUIRE(world.store->flush(30 * kNsPerS).is_ok());
    CHECK(count_done(world.put(space, 50, 50, 10000, key_of(49))) == 50);
    REQUIRE(world.crash_and_open(false).is_ok());
    const auto again = world.add_namespace(10000);
    const auto outcomes = world.get(again, 0, 100, 10000);
    CHECK(count_done(outcomes) >= 50);
  }
}

TEST_CASE("a store without host memory works from disk alone") {
  StoreWorld world;
  world.options.host_bytes = 0;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(100001);
  CHECK(count_done(world.put(space, 0, 100, 100001)) == 100);
  CHECK(count_done(world.get(space, 0, 100, 100001)) == 100);
  CHECK(world.store->stats().disk.hits == 100);
}

TEST_CASE("a store without disk keeps to its memory") {
  StoreWorld world;
  world.options.path = "";
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(1 << 20);
  const auto outcomes = world.put(space, 0, 20, 1 << 20);
  CHECK(count_done(outcomes) == 8);
  CHECK(count_done(world.get(space, 0, 20, 1 << 20)) == 8);
  CHECK(count_done(world.put(space, 100, 8, 1 << 20)) == 8);
  CHECK(world.lookup(space, 0, 8) == 0);
}

TEST_CASE("more blocks than the tiers hold evict the oldest and never give wrong bytes") {
  StoreWorld world;
  world.options.eviction = EvictionMode::kLru;  // What follows counts on its order.
  world.options.disk_bytes = 16 << 20;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(64 << 10);
  for (std::uint64_t chain = 0; chain < 60; ++chain) {
    world.put(space, chain * 1000, 10, 64 << 10);
    world.get(space, chain * 1000, 10, 64 << 10);
    REQUIRE(world.store->flush(30 * kNsPerS).is_ok());
    CHECK(world.disk->allocated_bytes() <= world.options.disk_bytes);
  }
  CHECK(world.lookup(space, 59000, 10) == 10);
  CHECK(world.store->stats().disk.evicted > 0);
  for (std::uint64_t chain = 0; chain < 60; ++chain) world.get(space, chain * 1000, 10, 64 << 10);
}
