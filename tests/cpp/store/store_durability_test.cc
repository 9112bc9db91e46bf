// What flush and delete promised, held against crashes, full disks and files that cannot be
// removed.
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

std::uint64_t erase(StoreWorld& world, std::uint32_t space, std::uint64_t number) {
  auto erased = world.store->erase(space, std::vector<BlockKey>{key_of(number)});
  REQUIRE_MESSAGE(erased.is_ok(), erased.status().to_string());
  return erased.value();
}

}  // namespace

TEST_CASE("a flushed child survives although its parent was written a second time on a full disk") {
  // Without reserved space the device can be full under a slot. The parent's write fails and is
  // repeated elsewhere while its child's is under way.
  int num_kept_seeds = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    StoreWorld world(seed);
    world.disk->faults().allocate_unsupported = 1;
    world.options.disk_bytes = 16 << 20;
    REQUIRE(world.open().is_ok());
    const auto space = world.add_namespace(64 << 10);
    for (std::uint64_t chain = 0; chain < 10; ++chain) {
      world.put(space, 10000 + chain * 100, 4, 64 << 10);
    }
    world.flush();
    world.disk->set_capacity_bytes(world.disk->allocated_bytes() + (2 << 10));
    world.put(space, 0, 6, 64 << 10);
    world.flush();
    const bool is_all_kept = world.store->stats().disk.declined == 0;
    world.disk->set_capacity_bytes(1ull << 30);
    REQUIRE(world.crash_and_open(true).is_ok());
    world.check_consistency();
    const auto again = world.add_namespace(64 << 10);
    if (is_all_kept) CHECK(world.lookup(again, 0, 6) == 6);
    num_kept_seeds += is_all_kept ? 1 : 0;
  }
  CHECK(num_kept_seeds > 20);
}

TEST_CASE("a deleted key whose disk copy was evicted earlier does not come back after kill -9") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    StoreWorld world(seed);
    world.options.eviction = EvictionMode::kLru;  // What follows counts on its order.
    world.options.disk_bytes = 4 << 20;
    world.options.host_bytes = 16 << 20;
    REQUIRE(world.open().is_ok());
    const auto space = world.add_namespace(64 << 10);
    std::uint64_t number = 0;
    while (world.store->stats().disk.evicted == 0) {
      world.put(space, number++, 1, 64 << 10);
      world.flush();
    }
    // A younger block evicts the oldest one; its write is under way, so the old entry still lies in
    // the table and its payload in the slot, when the key is deleted.
    std::vector<std::uint64_t> erased;
    for (std::uint64_t round = 0; round < seed; ++round) {
      const std::uint64_t num_evicted = world.store->stats().disk.evicted;
      world.put(space, number++, 1, 64 << 10);
      run_for_ns(*world.executor, kNsPerUs);
      REQUIRE(world.store->stats().disk.evicted == num_evicted + 1);
      erased.push_back(round + 1);  // The first one went while the tier was filled.
      CHECK(erase(world, space, erased.back()) == 1);
    }
    REQUIRE(world.crash_and_open(true).is_ok());
    const auto again = world.add_namespace(64 << 10);
    for (const std::uint64_t old : erased) {
      CHECK(world.lookup(again, old, 1) == 0);
      CHECK(count_done(world.get(again, old, 1, 64 << 10)) == 0);
    }
  }
}

TEST_CASE("a deleted key does not come back from a segment that is still being removed") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    StoreWorld world(seed);
    world.options.disk_bytes = 4 << 20;
    world.options.host_bytes = 32 << 20;
    REQUIRE(world.open().is_ok());
    const auto small = world.add_namespace(16 << 10);
    const auto large = world.add_namespace(512 << 10);
    for (std::uint64_t number = 0; number < 220; ++number) {
      world.put(small, number, 1, 16 << 10);
      world.flush();
    }
    // The starving class has a segment of the other one emptied; its file goes a little later.
    std::vector<std::uint64_t> erased;
    for (std::uint64_t number = 0; number < 6; ++number) {
      world.put(large, 1000 + number, 1, 512 << 10);
      run_for_ns(*world.executor, static_cast<TimeNs>(1 + seed) * 200 * kNsPerUs);
      for (std::uint64_t k = 0; k < 10; ++k) {
        erased.push_back(number * 30 + k);
        erase(world, small, erased.back());
      }
      if (seed % 6 == number) break;
    }
    REQUIRE(world.crash_and_open(seed % 2 == 0).is_ok());
    const auto again = world.add_namespace(16 << 10);
    for (const std::uint64_t number : erased) CHECK(world.lookup(again, number, 1) == 0);
  }
}

TEST_CASE("a deleted key does not come back from a segment file that could not be removed") {
  StoreWorld world;
  world.options.disk_bytes = 4 << 20;
  world.options.host_bytes = 32 << 20;
  bool is_refusing = true;
  world.hooks->on_remove = [&](const std::string& name) {
    const bool is_refused = is_refusing && name.starts_with("segment-");
    return is_refused ? Status::from_errno(EPERM, "cannot remove file: name=" + name)
                      : Status::ok();
  };
  REQUIRE(world.open().is_ok());
  const auto small = world.add_namespace(16 << 10);
  const auto large = world.add_namespace(512 << 10);
  for (std::uint64_t number = 0; number < 220; ++number) world.put(small, number, 1, 16 << 10);
  world.flush();
  for (std::uint64_t number = 1000; number < 1004; ++number) {
    world.put(large, number, 1, 512 << 10);
    world.flush();
  }
  std::vector<std::uint64_t> erased;
  for (std::uint64_t number = 0; number < 220; ++number) {
    if (world.store->erase(small, std::vector<BlockKey>{key_of(number)}).is_ok()) {
      erased.push_back(number);
    }
  }
  CHECK(erased.size() > 0);
  is_refusing = false;
  REQUIRE(world.crash_and_open(true).is_ok());
  const auto again = world.add_namespace(16 << 10);
  for (const std::uint64_t number : erased) CHECK(world.lookup(again, number, 1) == 0);
}

TEST_CASE("a deleted key does not come back from a slot table that could not be read at open") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(4096);
  world.put(space, 0, 40, 4096, {}, false);
  world.flush();
  REQUIRE(world.store->close(kNsPerS).is_ok());
  world.store.reset();
  // The header is read, the table is not.
  world.hooks->on_read = [](const std::string& name, std::uint64_t offset_bytes) {
    const bool is_failing = name.starts_with("segment-") && offset_bytes >= 4096;
    return is_failing ? Status::from_errno(EIO, "cannot read file: name=" + name) : Status::ok();
  };
  REQUIRE(world.open().is_ok());
  const auto during = world.add_namespace(4096);
  CHECK(world.lookup(during, 0, 40) == 0);
  erase(world, during, 7);
  world.hooks->on_read = nullptr;
  REQUIRE(world.crash_and_open(true).is_ok());
  const auto again = world.add_namespace(4096);
  CHECK(world.lookup(again, 7, 1) == 0);
}

TEST_CASE("blocks of a namespace survive although the namespace before it could not be saved") {
  StoreWorld world;
  bool is_refusing = false;
  world.hooks->on_write = [&](const std::string& name) {
    const bool is_refused = is_refusing && name.starts_with("kvtier.namespaces");
    return is_refused ? Status::from_errno(EIO, "cannot write file: name=" + name) : Status::ok();
  };
  REQUIRE(world.open().is_ok());
  world.add_namespace(4096, 1);
  is_refusing = true;
  world.add_namespace(4096, 2);
  is_refusing = false;
  const auto space = world.add_namespace(4096, 3);
  CHECK(count_done(world.put(space, 0, 10, 4096)) == 10);
  world.flush();
  REQUIRE(world.restart().is_ok());
  CHECK(world.store->stats().recover_damaged_entries == 0);
  const auto again = world.add_namespace(4096, 3);
  CHECK(count_done(world.get(again, 0, 10, 4096)) == 10);
  // Those that come later get places of their own.
  for (std::uint64_t number = 4; number < 8; ++number) {
    const auto later = world.add_namespace(4096, number);
    CHECK(count_done(world.put(later, 0, 5, 4096)) == 5);
  }
  world.flush();
  CHECK(world.store->stats().disk.blocks == 30);
  REQUIRE(world.restart().is_ok());
  CHECK(world.store->stats().recovered_blocks == 30);
}
