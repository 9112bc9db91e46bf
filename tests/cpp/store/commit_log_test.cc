// Slot tables on disk follow the index in batches: what flush says is durable, unwritten tables are
// made up for, failures are repeated, and what the tables say is what the store knows.
#include "disk/directory_inspector.h"
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

std::uint64_t num_committed(StoreWorld& world) {
  auto directory = world.disk->make_directory();
  auto contents = disk::inspect_directory(*directory);
  REQUIRE_MESSAGE(contents.is_ok(), contents.status().to_string());
  std::uint64_t num_used = 0;
  for (const auto& segment : contents.value().segments) num_used += segment.num_used;
  return num_used;
}

}  // namespace

TEST_CASE("commits are written by themselves a moment after the blocks") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(4096);
  world.put(space, 0, 10, 4096);
  run_for_ns(*world.executor, 10 * kNsPerMs);
  CHECK(world.store->stats().disk.blocks == 10);
  CHECK(num_committed(world) == 0);
  run_for_ns(*world.executor, 100 * kNsPerMs);
  CHECK(num_committed(world) == 10);
}

TEST_CASE("many small blocks share their table writes") {
  StoreWorld world;
  world.options.disk_bytes = 256 << 20;
  world.options.host_bytes = 64 << 20;
  REQUIRE(world.open().is_ok());
  const std::size_t block_bytes = 64 << 10;
  const auto space = world.add_namespace(block_bytes);
  const std::uint64_t before = world.disk->written_bytes();
  for (std::uint64_t chain = 0; chain < 20; ++chain) {
    world.put(space, chain * 100, 25, block_bytes);
    run_for_ns(*world.executor, 30 * kNsPerMs);
  }
  world.flush();
  const std::uint64_t written = world.disk->written_bytes() - before;
  CHECK(written <= 500 * block_bytes * 108 / 100);  // Of what was offered.
}

TEST_CASE("a table write that fails is repeated until it succeeds, and flush waits for it") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(4096);
  world.put(space, 0, 10, 4096);
  run_for_ns(*world.executor, 10 * kNsPerMs);  // Payloads are written, commits are not.
  world.disk->faults().write_error = 1;
  CHECK_FALSE(world.store->flush(2 * kNsPerS).is_ok());
  world.disk->faults().write_error = 0;
  run_for_ns(*world.executor, 6 * kNsPerS);
  auto flushed = world.store->flush(10 * kNsPerS);
  REQUIRE_MESSAGE(flushed.is_ok(), flushed.status().to_string());
  REQUIRE(world.crash_and_open(false).is_ok());
  CHECK(count_done(world.get(world.add_namespace(4096), 0, 10, 4096)) == 10);
}

TEST_CASE("a sync that fails is told by flush, and a later flush makes everything durable") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(4096);
  world.put(space, 100, 1, 4096);
  world.flush();
  world.put(space, 0, 10, 4096);
  world.disk->faults().sync_error = 1;
  auto failed = world.store->flush(5 * kNsPerS);
  CHECK_FALSE(failed.is_ok());
  CHECK(failed.status().os_errno() == EIO);
  world.disk->faults().sync_error = 0;
  run_for_ns(*world.executor, 6 * kNsPerS);
  world.flush();
  REQUIRE(world.crash_and_open(false).is_ok());
  CHECK(count_done(world.get(world.add_namespace(4096), 0, 10, 4096)) == 10);
}

TEST_CASE("after a clean close the tables say what the store said, block by block") {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    StoreWorld world(seed);
    world.options.host_bytes = 1 << 20;
    world.options.disk_bytes = 3 << 20;
    REQUIRE(world.open().is_ok());
    const std::vector<std::uint64_t> many(70, 100);
    const auto plain = world.add_namespace(9000);
    const auto parts = world.add_namespace(7000, 1, many);
    Random random(seed);
    for (int round = 0; round < 60; ++round) {
      const bool is_plain = random.below(2) == 0;
      world.put(is_plain ? plain : parts, random.below(40) * 100, 1 + random.below(6),
                is_plain ? 9000 : 7000);
      if (random.below(5) == 0) {
        REQUIRE(world.store->erase(plain, keys_of(random.below(40) * 100, 1)).is_ok());
      }
      run_for_ns(*world.executor, static_cast<TimeNs>(random.below(40)) * kNsPerMs);
    }
    world.flush();
    const std::uint64_t num_blocks = world.store->stats().disk.blocks;
    REQUIRE(world.restart().is_ok());
    world.check_consistency();
    // Evicted blocks may have left commits behind; those must be whole then.
    CHECK(world.store->stats().recovered_blocks >= num_blocks);
    CHECK(world.store->stats().recover_damaged_entries == 0);
    const auto again = world.add_namespace(9000);
    const auto parts_again = world.add_namespace(7000, 1, many);
    for (std::uint64_t chain = 0; chain < 40; ++chain) {
      world.get(again, chain * 100, 6, 9000);
      world.get(parts_again, chain * 100, 6, 7000);
    }
  }
}
