// Pins: counted, bounded, on disk after a restart, ended by delete, clear and corruption; on the
// simulated world.
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

constexpr std::size_t kBlockBytes = 32 << 10;

std::uint64_t pin(StoreWorld& world, std::uint32_t space, std::uint64_t first, std::size_t n) {
  auto pinned = world.store->pin(space, keys_of(first, n));
  REQUIRE_MESSAGE(pinned.is_ok(), pinned.status().to_string());
  world.check_consistency();
  return pinned.value();
}

std::uint64_t unpin(StoreWorld& world, std::uint32_t space, std::uint64_t first, std::size_t n) {
  auto unpinned = world.store->unpin(space, keys_of(first, n));
  REQUIRE_MESSAGE(unpinned.is_ok(), unpinned.status().to_string());
  world.check_consistency();
  return unpinned.value();
}

/// Puts so many other blocks that everything that may go is gone from both tiers.
void flood(StoreWorld& world, std::uint32_t space, std::uint64_t first = 100'000) {
  const std::uint64_t num_blocks =
      (world.options.disk_bytes + world.options.host_bytes) / kBlockBytes * 3 / 2;
  for (std::uint64_t number = first; number < first + num_blocks; ++number) {
    world.put(space, number, 1, kBlockBytes);
    run_for_ns(*world.executor, 5 * kNsPerMs);
  }
  world.check_consistency();
}

struct SmallWorld : StoreWorld {
  explicit SmallWorld(std::uint64_t host_bytes = 1 << 20) {
    options.host_bytes = host_bytes;
    options.disk_bytes = 4 << 20;
    options.eviction = EvictionMode::kLru;  // The tests count on its order.
    REQUIRE(open().is_ok());
  }
};

}  // namespace

TEST_CASE("a pinned prefix outlives what floods both tiers, until it is unpinned as often") {
  for (const std::uint64_t host_bytes : {0ull, 1ull << 20}) {
    CAPTURE(host_bytes);
    SmallWorld world(host_bytes);
    const auto space = world.add_namespace(kBlockBytes);
    world.put(space, 0, 8, kBlockBytes);
    CHECK(pin(world, space, 0, 10) == 8);  // Two are not there.
    CHECK(pin(world, space, 0, 4) == 4);
    world.flush();
    CHECK(world.store->stats().disk.pinned_bytes == 8 * kBlockBytes);
    CHECK(world.store->stats().host.pinned_bytes == 0);
    flood(world, space);
    CHECK(world.store->stats().disk.evicted > 50);
    CHECK(count_done(world.get(space, 0, 8, kBlockBytes)) == 8);
    CHECK(unpin(world, space, 0, 10) == 8);
    flood(world, space, 200'000);
    CHECK(world.lookup(space, 0, 8) == 4);
    CHECK(unpin(world, space, 0, 10) == 4);
    CHECK(unpin(world, space, 0, 10) == 0);
    CHECK(world.store->stats().disk.pinned_bytes == 0);
    flood(world, space, 300'000);
    CHECK(world.lookup(space, 0, 8) == 0);
  }
}

TEST_CASE("a pin without a disk tier keeps the copy in host, at most a quarter of it") {
  StoreWorld world;
  world.options.eviction = EvictionMode::kLru;  // What follows counts on its order.
  world.options.path = "";
  world.options.host_bytes = 1 << 20;
  world.options.disk_bytes = 0;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(kBlockBytes);
  world.put(space, 0, 20, kBlockBytes);
  CHECK(pin(world, space, 0, 20) == 8);
  CHECK(world.store->stats().host.pinned_bytes == 256 << 10);
  CHECK(pin(world, space, 0, 20) == 8);  // More pins of the same blocks take no more room.
  CHECK(pin(world, space, 8, 1) == 0);
  flood(world, space);
  CHECK(world.lookup(space, 0, 20) == 8);
  CHECK(unpin(world, space, 0, 20) == 8);
  CHECK(unpin(world, space, 7, 1) == 1);
  world.put(space, 500, 1, kBlockBytes);
  CHECK(pin(world, space, 500, 1) == 1);
}

TEST_CASE("what waits for disk is pinned in host and its pin moves with it") {
  SmallWorld world;
  const auto space = world.add_namespace(kBlockBytes);
  world.disk->set_stalled(true);
  world.put(space, 0, 5, kBlockBytes);
  CHECK(pin(world, space, 0, 5) == 5);
  CHECK(world.store->stats().host.pinned_bytes == 5 * kBlockBytes);
  CHECK(world.store->stats().disk.pinned_bytes == 0);
  world.disk->set_stalled(false);
  world.flush();
  CHECK(world.store->stats().host.pinned_bytes == 0);
  CHECK(world.store->stats().disk.pinned_bytes == 5 * kBlockBytes);
  world.check_consistency();
  // Its copy in host is free to go.
  REQUIRE(world.store->clear(false, false).is_ok());
}

TEST_CASE("a block that disk could not take is offered again when it is pinned") {
  SmallWorld world;
  const auto space = world.add_namespace(kBlockBytes);
  world.disk->faults().write_error = 1;
  world.put(space, 0, 3, kBlockBytes);
  run_for_ns(*world.executor, 2 * kNsPerS);
  CHECK(world.store->stats().disk.blocks == 0);
  CHECK(pin(world, space, 0, 3) == 3);
  CHECK(world.store->stats().host.pinned_bytes == 3 * kBlockBytes);
  world.disk->faults().write_error = 0;
  run_for_ns(*world.executor, 20 * kNsPerS);
  // Neither put nor get in between: the pin itself brings it to disk.
  CHECK(pin(world, space, 0, 3) == 3);
  world.flush();
  CHECK(world.store->stats().disk.pinned_bytes == 3 * kBlockBytes);
}

TEST_CASE("pins and unpins survive a restart and a power loss after a flush") {
  for (const bool is_crash : {false, true}) {
    CAPTURE(is_crash);
    SmallWorld world;
    auto space = world.add_namespace(kBlockBytes);
    world.put(space, 0, 6, kBlockBytes);
    pin(world, space, 0, 6);
    for (int i = 0; i < 299; ++i) pin(world, space, 0, 1);  // More than a byte counts.
    world.flush();
    REQUIRE((is_crash ? world.crash_and_open(false) : world.restart()).is_ok());
    space = world.add_namespace(kBlockBytes);
    world.check_consistency();
    CHECK(world.store->stats().disk.pinned_bytes == 6 * kBlockBytes);
    flood(world, space);
    CHECK(count_done(world.get(space, 0, 6, kBlockBytes)) == 6);
    for (int i = 0; i < 299; ++i) CHECK(unpin(world, space, 0, 1) == 1);
    CHECK(unpin(world, space, 0, 6) == 6);
    world.flush();
    REQUIRE((is_crash ? world.crash_and_open(false) : world.restart()).is_ok());
    space = world.add_namespace(kBlockBytes);
    CHECK(world.store->stats().disk.pinned_bytes == 0);
    CHECK(unpin(world, space, 0, 6) == 0);
    CHECK(world.lookup(space, 0, 6) == 6);
  }
}

TEST_CASE("a pin that changes nothing else is written with the next batch, without a flush") {
  SmallWorld world;
  auto space = world.add_namespace(kBlockBytes);
  world.put(space, 0, 4, kBlockBytes);
  world.flush();
  pin(world, space, 0, 4);
  run_for_ns(*world.executor, kNsPerS);
  REQUIRE(world.crash_and_open(true).is_ok());
  space = world.add_namespace(kBlockBytes);
  CHECK(unpin(world, space, 0, 4) == 4);
}

TEST_CASE("delete, clear and corruption end pins") {
  SmallWorld world;
  auto space = world.add_namespace(kBlockBytes);
  world.put(space, 0, 8, kBlockBytes);
  pin(world, space, 0, 8);
  world.flush();
  CHECK(world.store->erase(space, keys_of(5, 1)).value() == 3);
  world.check_consistency();
  CHECK(world.store->stats().disk.pinned_bytes == 5 * kBlockBytes);
  world.put(space, 5, 3, kBlockBytes, key_of(4));
  CHECK(unpin(world, space, 5, 3) == 0);
  pin(world, space, 5, 3);
  REQUIRE(world.store->clear(true, false).is_ok());
  world.check_consistency();
  CHECK(world.store->stats().disk.pinned_bytes == 0);
  CHECK(unpin(world, space, 0, 8) == 0);
  pin(world, space, 0, 5);
  world.disk->faults().read_flip = 1;
  world.get(space, 0, 1, kBlockBytes);
  world.disk->faults().read_flip = 0;
  CHECK(world.lookup(space, 0, 8) == 0);
  CHECK(world.store->stats().disk.pinned_bytes == 0);
  world.put(space, 0, 8, kBlockBytes);
  pin(world, space, 0, 8);
  REQUIRE(world.store->clear(true, true).is_ok());
  CHECK(world.store->stats().host.pinned_bytes == 0);
  CHECK(world.store->stats().disk.pinned_bytes == 0);
  world.check_consistency();
}

TEST_CASE("at most a quarter of the disk is pinned, what is on its way to it included") {
  SmallWorld world(2 << 20);
  const auto space = world.add_namespace(kBlockBytes);
  for (std::uint64_t first = 0; first < 60; first += 10) {
    std::optional<BlockKey> parent;
    if (first > 0) parent = key_of(first - 1);
    world.put(space, first, 10, kBlockBytes, parent);
    world.flush();
  }
  const std::uint64_t num_pinned = pin(world, space, 0, 60);
  CHECK(num_pinned < 32);
  CHECK(num_pinned > 25);
  CHECK(world.store->stats().disk.pinned_bytes <= world.store->stats().disk.bytes_capacity / 4);
  CHECK(pin(world, space, num_pinned, 1) == 0);
  world.put(space, 1000, 4, kBlockBytes);
  CHECK(pin(world, space, 1000, 4) < 4);
  world.flush();
  world.check_consistency();
}

TEST_CASE("a smaller cap ends the latest pins, says so once, and keeps the others") {
  StoreWorld world;
  world.options.eviction = EvictionMode::kLru;  // What follows counts on its order.
  world.options.host_bytes = 1 << 20;
  world.options.disk_bytes = 16 << 20;
  REQUIRE(world.open().is_ok());
  auto space = world.add_namespace(kBlockBytes);
  for (std::uint64_t chain = 0; chain < 10; ++chain) {
    world.put(space, chain * 100, 10, kBlockBytes);
    world.flush();
  }
  // Pinned the other way round: what counts is when they were written.
  for (std::uint64_t chain = 10; chain-- > 0;) CHECK(pin(world, space, chain * 100, 10) == 10);
  world.flush();
  REQUIRE(world.store->close(60 * kNsPerS).is_ok());
  world.store.reset();
  world.options.disk_bytes = 6 << 20;
  for (int round = 0; round < 2; ++round) {
    CAPTURE(round);
    world.log.clear();
    REQUIRE(world.open().is_ok());
    CHECK(world.num_log_lines_with("earlier runs pinned") == (round == 0 ? 1 : 0));
    world.check_consistency();
    CHECK(world.disk->allocated_bytes() <= world.options.disk_bytes);
    const std::uint64_t num_pinned = world.store->stats().disk.pinned_bytes / kBlockBytes;
    CHECK(num_pinned > 40);
    CHECK(num_pinned <= 48);
    space = world.add_namespace(kBlockBytes);
    flood(world, space, 100'000 + static_cast<std::uint64_t>(round) * 10'000);
    for (std::uint64_t chain = 0; chain < 4; ++chain) {
      CHECK(count_done(world.get(space, chain * 100, 10, kBlockBytes)) == 10);
    }
    CHECK(world.lookup(space, 400, 10) == num_pinned - 40);
    for (std::uint64_t chain = 5; chain < 10; ++chain)
      CHECK(world.lookup(space, chain * 100, 10) == 0);
    REQUIRE(world.store->close(60 * kNsPerS).is_ok());
    world.store.reset();
  }
}

TEST_CASE("a smaller cap leaves a size class the room for its pins") {
  StoreWorld world;
  world.options.host_bytes = 1 << 20;
  world.options.disk_bytes = 16 << 20;
  REQUIRE(world.open().is_ok());
  auto small = world.add_namespace(4096);
  auto large = world.add_namespace(kBlockBytes);
  world.put(small, 0, 20, 4096);
  world.flush();
  CHECK(pin(world, small, 0, 20) == 20);
  for (std::uint64_t number = 0; number < 400; ++number) {
    world.put(large, number, 1, kBlockBytes);
    run_for_ns(*world.executor, 5 * kNsPerMs);
  }
  REQUIRE(world.store->close(60 * kNsPerS).is_ok());
  world.store.reset();
  world.options.disk_bytes = 4 << 20;
  REQUIRE(world.open().is_ok());
  world.check_consistency();
  small = world.add_namespace(4096);
  CHECK(world.store->stats().disk.pinned_bytes == 20 * 4096);
  CHECK(count_done(world.get(small, 0, 20, 4096)) == 20);
}

TEST_CASE("a pinned child keeps its unpinned parents, and one block bears 65,535 pins") {
  SmallWorld world;
  const auto space = world.add_namespace(kBlockBytes);
  world.put(space, 0, 6, kBlockBytes);
  pin(world, space, 0, 6);
  world.flush();
  CHECK(unpin(world, space, 0, 4) == 4);
  flood(world, space);
  CHECK(world.lookup(space, 0, 6) == 6);
  const auto keys = keys_of(0, 1);
  for (std::uint32_t i = 0; i < UINT16_MAX; ++i)
    REQUIRE(world.store->pin(space, keys).value() == 1);
  CHECK(world.store->pin(space, keys).value() == 0);
  CHECK(unpin(world, space, 0, 1) == 1);
  CHECK(world.store->pin(space, keys).value() == 1);
}

TEST_CASE("pins are refused to foreign and closed stores") {
  SmallWorld world;
  CHECK(world.store->pin(7, keys_of(0, 1)).status().code() == StatusCode::kInvalidArgument);
  CHECK(world.store->unpin(7, keys_of(0, 1)).status().code() == StatusCode::kInvalidArgument);
  const auto space = world.add_namespace(kBlockBytes);
  CHECK(world.store->pin(space, {}).value() == 0);
  REQUIRE(world.store->close(kNsPerS).is_ok());
  CHECK(world.store->pin(space, keys_of(0, 1)).status().code() == StatusCode::kClosed);
  CHECK(world.store->unpin(space, keys_of(0, 1)).status().code() == StatusCode::kClosed);
}
