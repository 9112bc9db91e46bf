// A disk that does not answer: host hits go on, gets of disk end in time, close ends, and
// everything works again when the disk does.
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

/// Blocks 0..9 on disk alone, 100..103 in both tiers.
std::uint32_t open_with_blocks(StoreWorld& world) {
  REQUIRE(world.open().is_ok());
  const auto first = world.add_namespace(16'000);
  world.put(first, 0, 10, 16'000);
  world.flush();
  REQUIRE(world.restart().is_ok());
  const auto space = world.add_namespace(16'000);
  world.put(space, 100, 4, 16'000);
  world.flush();
  return space;
}

}  // namespace

TEST_CASE("while the disk stalls host blocks are served and those of disk end at the stall time") {
  StoreWorld world;
  const auto space = open_with_blocks(world);
  world.disk->set_stalled(true);
  const TimeNs start_ns = world.clock->now_ns();
  CHECK(count_done(world.get(space, 100, 4, 16'000)) == 4);
  CHECK(world.clock->now_ns() == start_ns);
  const auto outcomes = world.get(space, 0, 4, 16'000);
  CHECK(outcomes[0] == Outcome::kTimeout);
  CHECK(outcomes[1] == Outcome::kMiss);
  CHECK(world.clock->now_ns() - start_ns <= world.options.stall_ns + kNsPerMs);
  CHECK(world.store->stats().disk.health == Health::kStalled);
  // Lookups count what can be had now; nothing was removed.
  CHECK(world.lookup(space, 0, 10) == 0);
  CHECK(world.lookup(space, 100, 4) == 4);
  const TimeNs stalled_ns = world.clock->now_ns();
  CHECK(world.get(space, 2, 1, 16'000)[0] == Outcome::kMiss);
  CHECK(count_done(world.put(space, 200, 5, 16'000)) == 5);
  CHECK(count_done(world.get(space, 200, 5, 16'000)) == 5);
  CHECK(world.clock->now_ns() == stalled_ns);
  world.disk->set_stalled(false);
  run_for_ns(*world.executor, kNsPerS);
  CHECK(world.store->stats().disk.health == Health::kOk);
  CHECK(world.lookup(space, 0, 10) == 10);
  CHECK(count_done(world.get(space, 0, 10, 16'000)) == 10);
  CHECK(world.store->stats().staging_bytes_used == 0);
  world.flush();
  CHECK(world.store->stats().disk.blocks == 19);
  world.check_consistency();
}

TEST_CASE("a get with a deadline before the stall time ends at its deadline") {
  StoreWorld world;
  const auto space = open_with_blocks(world);
  world.disk->set_stalled(true);
  world.timeout_ns = 300 * kNsPerMs;
  const TimeNs start_ns = world.clock->now_ns();
  CHECK(world.get(space, 0, 2, 16'000)[0] == Outcome::kTimeout);
  CHECK(world.clock->now_ns() - start_ns == 300 * kNsPerMs);
  world.disk->set_stalled(false);
  run_until_idle(*world.executor);
  world.timeout_ns = 30 * kNsPerS;
  CHECK(count_done(world.get(space, 0, 10, 16'000)) == 10);
  world.check_consistency();
}

TEST_CASE("without host memory puts and gets of a stalled disk end in time") {
  StoreWorld world;
  world.options.host_bytes = 0;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(16'000);
  world.put(space, 0, 5, 16'000);
  world.flush();
  world.disk->set_stalled(true);
  world.timeout_ns = kNsPerS;
  TimeNs start_ns = world.clock->now_ns();
  CHECK(count_done(world.put(space, 100, 600, 16'000)) == 0);
  CHECK(world.clock->now_ns() - start_ns <= 2 * kNsPerS);
  start_ns = world.clock->now_ns();
  CHECK(count_done(world.get(space, 0, 5, 16'000)) == 0);
  CHECK(world.clock->now_ns() - start_ns <= kNsPerS);
  world.disk->set_stalled(false);
  run_for_ns(*world.executor, 3 * kNsPerS);
  world.timeout_ns = 30 * kNsPerS;
  CHECK(count_done(world.get(space, 0, 5, 16'000)) == 5);
  CHECK(count_done(world.put(space, 1000, 20, 16'000)) == 20);
  CHECK(count_done(world.get(space, 1000, 20, 16'000)) == 20);
  CHECK(world.store->stats().staging_bytes_used == 0);
  world.check_consistency();
}

TEST_CASE(
    "flush, delete and clear of a stalled disk say so at their deadline, and what is cleared stays "
    "away") {
  StoreWorld world;
  world.options.default_timeout_ns = 3 * kNsPerS;
  const auto space = open_with_blocks(world);
  world.disk->set_stalled(true);
  world.put(space, 200, 3, 16'000);
  run_for_ns(*world.executor, kNsPerMs);
  TimeNs start_ns = world.clock->now_ns();
  CHECK(world.store->flush(kNsPerS).status().code() == StatusCode::kTimeout);
  CHECK(world.clock->now_ns() - start_ns == kNsPerS);
  start_ns = world.clock->now_ns();
  CHECK_FALSE(world.store->erase(space, keys_of(100, 1)).is_ok());
  CHECK(world.lookup(space, 100, 1) == 0);
  CHECK_FALSE(world.store->clear(true, true).is_ok());
  CHECK(world.clock->now_ns() - start_ns <= 2 * world.options.default_timeout_ns + kNsPerMs);
  world.disk->set_stalled(false);
  run_for_ns(*world.executor, 5 * kNsPerS);
  CHECK(world.store->stats().disk.health == Health::kOk);
  CHECK(world.lookup(space, 0, 10) == 0);
  CHECK(world.lookup(space, 101, 3) == 0);
  CHECK(count_done(world.get(space, 0, 10, 16'000)) == 0);
  world.check_consistency();
  CHECK(count_done(world.put(space, 0, 10, 16'000)) == 10);
  world.flush();
  REQUIRE(world.crash_and_open(true).is_ok());
  CHECK(count_done(world.get(world.add_namespace(16'000), 0, 10, 16'000)) == 10);
}

TEST_CASE("attaching a namespace while the disk stalls ends in time and is made up for later") {
  StoreWorld world;
  world.options.default_timeout_ns = 3 * kNsPerS;
  const auto space = open_with_blocks(world);
  world.disk->set_stalled(true);
  world.get(space, 0, 1, 16'000);
  const TimeNs start_ns = world.clock->now_ns();
  const auto late = world.add_namespace(4096, 7);
  CHECK(world.clock->now_ns() - start_ns <= 3 * kNsPerS + kNsPerMs);
  CHECK(count_done(world.put(late, 0, 5, 4096)) == 5);
  CHECK(count_done(world.get(late, 0, 5, 4096)) == 5);
  world.disk->set_stalled(false);
  run_for_ns(*world.executor, 5 * kNsPerS);
  world.flush();
  REQUIRE(world.restart().is_ok());
  CHECK(count_done(world.get(world.add_namespace(16'000), 0, 10, 16'000)) == 10);
}
