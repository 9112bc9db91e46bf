// Leases, deletes, clears and the rules of families, on the simulated world (G12 among them).
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

std::uint64_t erase(StoreWorld& world, std::uint32_t space, std::uint64_t number) {
  auto erased = world.store->erase(space, std::vector<BlockKey>{key_of(number)});
  REQUIRE_MESSAGE(erased.is_ok(), erased.status().to_string());
  return erased.value();
}

std::uint64_t lease(StoreWorld& world, std::uint32_t space, std::uint64_t first,
                    std::size_t num_blocks, TimeNs ttl_ns) {
  auto leased = world.store->lease(space, keys_of(first, num_blocks), true, ttl_ns);
  REQUIRE(leased.is_ok());
  REQUIRE(leased.value().found.num_blocks == num_blocks);
  return leased.value().lease_id;
}

}  // namespace

TEST_CASE("a lease ends at its time, and by no other clock") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(4096);
  world.put(space, 0, 3, 4096);
  const std::uint64_t lease_id = lease(world, space, 0, 3, 5 * kNsPerS);
  CHECK(world.store->lease_expires_in_ns(lease_id) == 5 * kNsPerS);
  world.clock->advance_ns(5 * kNsPerS - 1);
  CHECK(world.store->lease_expires_in_ns(lease_id) == 1);
  CHECK(erase(world, space, 2) == 0);
  world.clock->advance_ns(1);
  CHECK(world.store->lease_expires_in_ns(lease_id) == 0);
  CHECK_FALSE(world.store->release(lease_id));
  CHECK(world.store->stats().live_leases == 0);
  CHECK(erase(world, space, 0) == 3);
}

TEST_CASE("a lease lasts an hour at most and a negative time not at all") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(4096);
  world.put(space, 0, 3, 4096);
  const std::uint64_t longest = lease(world, space, 0, 3, kNeverNs);
  CHECK(world.store->lease_expires_in_ns(longest) == 3600 * kNsPerS);
  const std::uint64_t shortest = lease(world, space, 0, 3, -5);
  CHECK(world.store->lease_expires_in_ns(shortest) == 0);
  CHECK_FALSE(world.store->release(shortest));
  CHECK(world.store->release(longest));
}

TEST_CASE("a lease of a disk copy keeps that copy") {
  StoreWorld world;
  world.options.eviction = EvictionMode::kLru;  // What follows counts on its order.
  world.options.host_bytes = 1 << 20;
  world.options.disk_bytes = 4 << 20;
  REQUIRE(world.open().is_ok());
  world.put(world.add_namespace(32 << 10), 0, 4, 32 << 10);
  world.flush();
  REQUIRE(world.restart().is_ok());
  const auto space = world.add_namespace(32 << 10);
  auto leased = world.store->lease(space, keys_of(0, 4), true, 1000 * kNsPerS);
  REQUIRE(leased.value().found.num_blocks == 4);
  for (const Tier tier : leased.value().found.tiers) CHECK(tier == Tier::kDisk);
  CHECK(world.store->stats().disk.leased_bytes == 4 * (32 << 10));
  for (std::uint64_t number = 1000; number < 1400; ++number) {
    world.put(space, number, 1, 32 << 10);
    run_for_ns(*world.executor, 5 * kNsPerMs);
  }
  CHECK(world.store->stats().disk.evicted > 100);
  CHECK(count_done(world.get(space, 0, 4, 32 << 10)) == 4);
  CHECK(world.store->release(leased.value().lease_id));
  world.check_consistency();
}

TEST_CASE("a lease of nothing is none, and one of a hole ends before it") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(4096);
  world.put(space, 0, 3, 4096);
  world.put(space, 5, 2, 4096);
  auto missing = world.store->lease(space, keys_of(100, 3), true, kNsPerS);
  CHECK(missing.value().lease_id == 0);
  CHECK(missing.value().found.num_blocks == 0);
  auto part = world.store->lease(space, keys_of(0, 7), true, kNsPerS);
  CHECK(part.value().found.num_blocks == 3);
  CHECK(erase(world, space, 5) == 2);
  auto holes = world.store->lease(space, keys_of(0, 7), false, kNsPerS);
  CHECK(holes.value().found.num_blocks == 3);
}

TEST_CASE("a delete takes descendants and refuses what is leased with its ancestors") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(4096);
  world.put(space, 0, 6, 4096);
  world.put(space, 100, 3, 4096, key_of(2));
  const std::uint64_t lease_id = lease(world, space, 0, 4, 1000 * kNsPerS);
  CHECK(erase(world, space, 0) == 2 + 3);  // 4, 5 and the branch; 0 to 3 stay.
  CHECK(world.lookup(space, 0, 6) == 4);
  CHECK(world.lookup(space, 100, 3) == 0);
  CHECK(world.store->release(lease_id));
  CHECK(erase(world, space, 1) == 3);
  CHECK(world.lookup(space, 0, 6) == 1);
  CHECK(erase(world, space, 1) == 0);
  CHECK(erase(world, space, 77) == 0);
  world.check_consistency();
}

TEST_CASE("a delete is durable when it returns") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    StoreWorld world(seed);
    REQUIRE(world.open().is_ok());
    const auto space = world.add_namespace(4096);
    world.put(space, 0, 20, 4096);
    world.flush();
    CHECK(erase(world, space, 10) == 10);
    REQUIRE(world.crash_and_open(seed % 2 == 0).is_ok());
    const auto again = world.add_namespace(4096);
    CHECK(world.lookup(again, 0, 20) == 10);
    CHECK(count_done(world.get(again, 10, 10, 4096, false)) == 0);
  }
}

TEST_CASE("clearing one tier keeps what can stand without it, and both keep nothing") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(4096);
  world.put(space, 0, 10, 4096);
  world.flush();
  world.put(space, 100, 5, 4096);
  auto cleared = world.store->clear(true, false);
  REQUIRE(cleared.is_ok());
  CHECK(cleared.value().host.blocks == 15);
  CHECK(cleared.value().host.bytes == 15 * 4096);
  CHECK(cleared.value().disk.blocks == 0);
  CHECK(world.store->stats().host.blocks == 0);
  CHECK(world.lookup(space, 0, 10) == 10);
  CHECK(world.lookup(space, 100, 5) == 0);  // They had no other copy.
  CHECK(count_done(world.get(space, 0, 10, 4096)) == 10);
  cleared = world.store->clear(false, true);
  REQUIRE(cleared.is_ok());
  CHECK(cleared.value().disk.blocks == 10);
  CHECK(world.store->stats().disk.blocks == 0);
  CHECK(count_done(world.get(space, 0, 10, 4096)) == 10);  // Now from host.
  world.flush();
  const std::uint64_t lease_id = lease(world, space, 0, 10, 1000 * kNsPerS);
  cleared = world.store->clear(true, true);
  REQUIRE(cleared.is_ok());
  CHECK(world.lookup(space, 0, 10) == 0);
  CHECK_FALSE(world.store->release(lease_id));
  CHECK(world.store->stats().index_entries == 0);
  CHECK(world.store->stats().host.bytes_used == 0);
  CHECK(world.disk->allocated_bytes() < 64 << 10);  // The disk's space is given back.
  run_for_ns(*world.executor, kNsPerS);
  CHECK(world.lookup(space, 100, 5) == 0);
  REQUIRE(world.crash_and_open(false).is_ok());
  CHECK(world.store->stats().recovered_blocks == 0);
}

TEST_CASE("a parent that is not there declines all, and a parent once set stays") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(4096);
  for (const bool is_chain : {true, false}) {
    for (const Outcome outcome : world.put(space, 10, 3, 4096, key_of(9), is_chain)) {
      CHECK(outcome == Outcome::kDeclined);
    }
  }
  CHECK(world.store->stats().index_entries == 0);
  world.put(space, 0, 3, 4096);
  world.put(space, 100, 1, 4096);
  // 2 is the child of 1 and stays so, although it is offered below 100.
  CHECK(count_done(world.put(space, 2, 1, 4096, key_of(100))) == 1);
  CHECK(erase(world, space, 100) == 1);
  CHECK(world.lookup(space, 0, 3) == 3);
  CHECK(erase(world, space, 1) == 2);
  // A block cannot become its own ancestor.
  world.put(space, 50, 2, 4096);
  CHECK(count_done(world.put(space, 50, 1, 4096, key_of(51))) == 1);
  CHECK(erase(world, space, 50) == 2);
  world.check_consistency();
}

TEST_CASE("the same key twice in one call is stored once") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(4096);
  const auto payload = payload_of(1, 4096);
  const std::vector<BlockKey> keys = {key_of(1), key_of(1), key_of(1)};
  const std::vector<const std::byte*> sources(3, payload.data());
  for (const bool is_chain : {true, false}) {
    PutRequest request;
    request.namespace_index = space;
    request.keys = keys;
    request.sources = sources;
    request.is_chain = is_chain;
    request.timeout_ns = kNsPerS;
    CHECK(count_done(world.store->put(request).value()) == 3);
  }
  CHECK(world.store->stats().host.inserted == 1);
  CHECK(world.store->stats().index_entries == 1);
  std::vector<std::vector<std::byte>> targets(3, std::vector<std::byte>(4096));
  const std::vector<std::byte*> addresses = {targets[0].data(), targets[1].data(),
                                             targets[2].data()};
  GetRequest get;
  get.namespace_index = space;
  get.keys = keys;
  get.targets = addresses;
  get.timeout_ns = kNsPerS;
  CHECK(count_done(world.store->get(get).value()) == 3);
  for (const auto& target : targets) CHECK(target == payload);
  world.check_consistency();
}

TEST_CASE("G12: ids that nobody gave out are refused") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(4096);
  for (const std::uint64_t lease_id : {0ull, 1ull, 999'999ull, UINT64_MAX + 0ull}) {
    CHECK_FALSE(world.store->release(lease_id));
    CHECK(world.store->lease_expires_in_ns(lease_id) == 0);
  }
  for (const std::uint32_t bogus : {space + 1, 70'000u, UINT32_MAX}) {
    CHECK_FALSE(world.store->lookup(bogus, keys_of(0, 1), true).is_ok());
    CHECK_FALSE(world.store->lease(bogus, keys_of(0, 1), true, kNsPerS).is_ok());
    CHECK_FALSE(world.store->erase(bogus, keys_of(0, 1)).is_ok());
    PutRequest put;
    put.namespace_index = bogus;
    CHECK(world.store->put(put).status().code() == StatusCode::kInvalidArgument);
    GetRequest get;
    get.namespace_index = bogus;
    CHECK(world.store->get(get).status().code() == StatusCode::kInvalidArgument);
  }
  // Of no keys at all there is nothing to say.
  CHECK(world.put(space, 0, 0, 4096).empty());
  CHECK(world.get(space, 0, 0, 4096).empty());
  CHECK(world.lookup(space, 0, 0) == 0);
  CHECK(world.store->erase(space, {}).value() == 0);
  REQUIRE(world.store->close(kNsPerS).is_ok());
  CHECK(world.store->close(kNsPerS).is_ok());
  CHECK_FALSE(world.store->release(1));
  CHECK(world.store->lookup(space, keys_of(0, 1), true).status().code() == StatusCode::kClosed);
  CHECK(world.store->clear(true, true).status().code() == StatusCode::kClosed);
}
