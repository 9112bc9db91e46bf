// Writes to disk behind the puts: parents first whatever completes first, a bounded backlog, and
// what was put off comes later.
#include "store_world.h"
#include "testing/without_leak_check.h"

using namespace kvtier;
using namespace kvtier::testing;

TEST_CASE("whenever the process is killed the disk holds whole chains from their roots") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    SimOptions sim;
    sim.latency_min_ns = 10 * kNsPerUs;
    sim.latency_max_ns = 20 * kNsPerMs;  // Completions come far out of order.
    StoreWorld world(seed, sim);
    REQUIRE(world.open().is_ok());
    const auto space = world.add_namespace(8192);
    Random random(seed);
    for (std::uint64_t chain = 0; chain < 10; ++chain) {
      world.put(space, chain * 100, 5, 8192);
      world.put(space, chain * 100 + 5, 10, 8192, key_of(chain * 100 + 4));
      run_for_ns(*world.executor, static_cast<TimeNs>(random.below(30)) * kNsPerMs);
    }
    run_for_ns(*world.executor, static_cast<TimeNs>(random.below(100)) * kNsPerMs);
    world.check_consistency();
    REQUIRE(world.crash_and_open(seed % 3 != 0).is_ok());
    world.check_consistency();
    const auto again = world.add_namespace(8192);
    for (std::uint64_t chain = 0; chain < 10; ++chain) {
      const std::size_t num_prefix = world.lookup(again, chain * 100, 15);
      const auto all = world.store->lookup(again, keys_of(chain * 100, 15), false);
      CHECK(all.value().num_blocks == num_prefix);
      world.get(again, chain * 100, 15, 8192);
    }
  }
}

TEST_CASE("the backlog stays below its bound and everything put off is written later") {
  SimOptions sim;
  sim.bytes_per_s = 50e6;
  StoreWorld world(1, sim);
  world.options.host_bytes = 32 << 20;
  world.options.stall_ns = 60 * kNsPerS;
  REQUIRE(world.open().is_ok());
  const std::size_t block_bytes = 100'000;
  const auto space = world.add_namespace(block_bytes);
  for (std::uint64_t chain = 0; chain < 25; ++chain) {
    CHECK(count_done(world.put(space, chain * 100, 10, block_bytes)) == 10);
    CHECK(world.store->stats().disk.backlog_bytes <= world.options.host_bytes / 2);
    CHECK(world.store->stats().disk.backlog_bytes_max == world.options.host_bytes / 2);
  }
  CHECK(world.store->stats().disk.backlog_bytes > world.options.host_bytes / 4);
  const std::uint64_t num_put_off = world.store->stats().disk.declined;
  CHECK(num_put_off > 0);
  auto flushed = world.store->flush(600 * kNsPerS);
  REQUIRE(flushed.is_ok());
  CHECK(flushed.value().not_kept_blocks == 0);
  CHECK(flushed.value().durable_blocks == 250);
  CHECK(world.store->stats().disk.backlog_bytes == 0);
  world.check_consistency();
}

TEST_CASE("loads go before waiting writes") {
  SimOptions sim;
  sim.bytes_per_s = 20e6;
  sim.latency_max_ns = 100 * kNsPerUs;
  sim.queue_depth = 2;
  StoreWorld world(1, sim);
  world.options.stall_ns = 60 * kNsPerS;
  REQUIRE(world.open().is_ok());
  world.put(world.add_namespace(50'000), 0, 4, 50'000);
  world.flush();
  REQUIRE(world.restart().is_ok());
  const auto space = world.add_namespace(50'000);
  for (std::uint64_t chain = 1; chain <= 7; ++chain) world.put(space, chain * 100, 10, 50'000);
  run_for_ns(*world.executor, 10 * kNsPerMs);
  CHECK(world.store->stats().disk.backlog_bytes > 2'000'000);  // A tenth of a second and more.
  const TimeNs start_ns = world.clock->now_ns();
  CHECK(count_done(world.get(space, 0, 4, 50'000)) == 4);
  CHECK(world.clock->now_ns() - start_ns < 60 * kNsPerMs);
}

TEST_CASE("a child of a block that disk does not take stays in host with it") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(8192);
  world.put(space, 100, 1, 8192);
  world.flush();
  world.disk->faults().write_error = 1;
  world.put(space, 0, 10, 8192);
  run_for_ns(*world.executor, kNsPerS);
  CHECK(count_done(world.get(space, 0, 10, 8192)) == 10);
  CHECK(world.store->stats().disk.blocks == 1);
  CHECK(world.store->stats().disk.backlog_bytes == 0);
  world.check_consistency();
  world.disk->faults().write_error = 0;
  run_for_ns(*world.executor, 6 * kNsPerS);
  world.get(space, 9, 1, 8192);  // The last one alone: its ancestors come before it.
  world.flush();
  CHECK(world.store->stats().disk.blocks == 11);
  REQUIRE(world.crash_and_open(false).is_ok());
  CHECK(world.lookup(world.add_namespace(8192), 0, 10) == 10);
}

TEST_CASE("close writes what its time allows and says what did not reach the disk") {
  SimOptions sim;
  sim.bytes_per_s = 1e6;
  sim.queue_depth = 2;
  // All of it under way at once, or most of it still queued.
  std::uint64_t block_bytes = 10'000;
  std::uint64_t num_blocks = 200;
  SUBCASE("under way") {}
  SUBCASE("queued") {
    block_bytes = 50'000;
    num_blocks = 120;
  }
  StoreWorld world(1, sim);
  world.options.stall_ns = 600 * kNsPerS;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(block_bytes);
  CHECK(count_done(world.put(space, 0, num_blocks, block_bytes)) == num_blocks);
  const TimeNs start_ns = world.clock->now_ns();
  CHECK(world.store->close(kNsPerS).is_ok());
  CHECK(world.clock->now_ns() - start_ns <= 3 * kNsPerS);
  CHECK(world.num_log_lines_with("closed before everything was on disk") == 1);
  world.store.reset();
  REQUIRE(world.open().is_ok());
  const auto again = world.add_namespace(block_bytes);
  CHECK(world.lookup(again, 0, num_blocks) > 10);
  CHECK(world.lookup(again, 0, num_blocks) < num_blocks - 10);
  CHECK(count_done(world.get(again, 0, num_blocks, block_bytes)) ==
        world.lookup(again, 0, num_blocks));
}

TEST_CASE("close ends in its time under a stalled disk and the directory is refused until then") {
  const WithoutLeakCheck without_leak_check;
  auto world = std::make_unique<StoreWorld>();
  REQUIRE(world->open().is_ok());
  const auto space = world->add_namespace(8192);
  world->put(space, 0, 4, 8192);
  world->flush();
  world->disk->set_stalled(true);
  world->put(space, 100, 4, 8192);
  run_for_ns(*world->executor, kNsPerMs);
  const TimeNs start_ns = world->clock->now_ns();
  CHECK(world->store->close(2 * kNsPerS).is_ok());
  CHECK(world->clock->now_ns() - start_ns <= 3 * kNsPerS);
  world->store.reset();
  world->disk->set_stalled(false);
  CHECK(world->open().code() == StatusCode::kBusy);  // What the kernel held keeps the lock.
  REQUIRE(world->crash_and_open(true).is_ok());      // As when that process ended.
  CHECK(world->lookup(world->add_namespace(8192), 0, 4) == 4);
  // By contract that memory stays until the process ends; so does the world that owns its disk.
  static std::vector<std::unique_ptr<StoreWorld>> kept;
  kept.push_back(std::move(world));
}
