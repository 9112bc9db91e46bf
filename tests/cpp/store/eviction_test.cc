// What goes when room is needed, and what is offered again (C2, C4, C8, C12), with several sizes at
// once.
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

void open_host_only(StoreWorld& world, std::uint64_t host_bytes) {
  world.options.path = "";
  world.options.host_bytes = host_bytes;
  REQUIRE(world.open().is_ok());
}

}  // namespace

TEST_CASE("C2: the block that was just written is not the one that goes") {
  StoreWorld world;
  open_host_only(world, 1 << 20);
  const auto space = world.add_namespace(64 << 10);
  for (std::uint64_t number = 0; number < 16; ++number) world.put(space, number, 1, 64 << 10);
  for (std::uint64_t number = 0; number < 15; ++number) world.get(space, number, 1, 64 << 10);
  world.put(space, 100, 1, 64 << 10);  // Takes the place of 15, which nobody read.
  world.put(space, 101, 1, 64 << 10);
  CHECK(world.lookup(space, 100, 1) == 1);
  CHECK(world.lookup(space, 15, 1) == 0);
  CHECK(world.lookup(space, 0, 1) == 0);
  CHECK(world.lookup(space, 1, 1) == 1);
  CHECK(world.store->stats().host.evicted == 2);
}

TEST_CASE("C4: what a lease names is still there after puts that fill everything") {
  StoreWorld world;
  world.options.eviction = EvictionMode::kLru;
  open_host_only(world, 1 << 20);
  const auto space = world.add_namespace(64 << 10);
  world.put(space, 0, 4, 64 << 10);
  auto lease = world.store->lease(space, keys_of(0, 4), true, 10 * kNsPerS);
  REQUIRE(lease.is_ok());
  CHECK(lease.value().found.num_blocks == 4);
  CHECK(world.store->stats().host.leased_bytes == 4 * (64 << 10));
  world.put(space, 1000, 30, 64 << 10);
  for (std::uint64_t number = 2000; number < 2040; ++number) world.put(space, number, 1, 64 << 10);
  CHECK(count_done(world.get(space, 0, 4, 64 << 10)) == 4);
  CHECK(world.store->release(lease.value().lease_id));
  CHECK(world.store->stats().host.leased_bytes == 0);
  for (std::uint64_t number = 3000; number < 3040; ++number) world.put(space, number, 1, 64 << 10);
  CHECK(world.lookup(space, 0, 4) == 0);
}

TEST_CASE("C8: declined blocks are offered again and fill the hole") {
  StoreWorld world;
  world.options.host_bytes = 1 << 20;
  REQUIRE(world.open().is_ok());
  const std::size_t block_bytes = 100'000;  // Ten of them fit into host.
  const auto space = world.add_namespace(block_bytes);
  std::uint64_t next = 0;
  int num_rounds = 0;
  while (next < 100) {
    REQUIRE(++num_rounds < 100);
    std::optional<BlockKey> parent;
    if (next > 0) parent = key_of(next - 1);
    const auto outcomes = world.put(space, next, 100 - next, block_bytes, parent);
    std::size_t num_accepted = 0;
    while (num_accepted < outcomes.size() && outcomes[num_accepted] == Outcome::kDone) {
      ++num_accepted;
    }
    // Prefix first: nothing behind the first declined one is taken.
    for (std::size_t i = num_accepted; i < outcomes.size(); ++i) {
      CHECK(outcomes[i] == Outcome::kDeclined);
    }
    next += num_accepted;
    run_for_ns(*world.executor, 100 * kNsPerMs);
  }
  CHECK(num_rounds <= 12);
  CHECK(world.lookup(space, 0, 100) == 100);
  CHECK(count_done(world.get(space, 0, 100, block_bytes)) == 100);
  world.flush();
  REQUIRE(world.crash_and_open(false).is_ok());
  CHECK(world.lookup(world.add_namespace(block_bytes), 0, 100) == 100);
}

TEST_CASE("C12: a block of four parts is there as a whole or not at all") {
  StoreWorld world;
  world.options.host_bytes = 1 << 20;
  world.options.disk_bytes = 2 << 20;
  REQUIRE(world.open().is_ok());
  const std::vector<std::uint64_t> parts = {10'000, 1, 0, 9'999};
  const auto space = world.add_namespace(20'000, 0, parts);
  for (std::uint64_t round = 0; round < 300; ++round) {
    world.put(space, round % 150 * 10, 3, 20'000);
    run_for_ns(*world.executor, 5 * kNsPerMs);
    // Whatever the lookup promises comes as a whole; the world's get checks all of it.
    const std::uint64_t asked = (round * 7) % 150 * 10;
    const std::size_t num_found = world.lookup(space, asked, 3);
    CHECK(count_done(world.get(space, asked, 3, 20'000)) == num_found);
  }
  CHECK(world.store->stats().disk.evicted > 0);
  CHECK(world.store->stats().disk.corrupt == 0);
  world.flush();
  REQUIRE(world.crash_and_open(true).is_ok());
  const auto again = world.add_namespace(20'000, 0, parts);
  for (std::uint64_t chain = 0; chain < 150; ++chain) world.get(again, chain * 10, 3, 20'000);
  CHECK(world.store->stats().disk.corrupt == world.store->stats().disk.torn);
}

TEST_CASE("C12: one damaged part costs its block and no other") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const std::vector<std::uint64_t> parts = {3000, 3000, 3000, 3000};
  world.put(world.add_namespace(12'000, 0, parts), 0, 6, 12'000, {}, false);
  world.flush();
  REQUIRE(world.restart().is_ok());
  const auto payload = payload_of(3, 12'000);
  for (auto& [name, bytes] : world.disk->files()) {
    const auto found =
        std::search(bytes.begin(), bytes.end(), payload.begin() + 6000, payload.begin() + 6512);
    if (found != bytes.end()) *found ^= std::byte{1};
  }
  const auto space = world.add_namespace(12'000, 0, parts);
  const auto outcomes = world.get(space, 0, 6, 12'000, false);
  CHECK(count_done(outcomes) == 5);
  CHECK(outcomes[3] == Outcome::kCorrupt);
}

TEST_CASE("several block sizes share both tiers and each gets its turn") {
  StoreWorld world;
  world.options.host_bytes = 4 << 20;
  world.options.disk_bytes = 8 << 20;
  REQUIRE(world.open().is_ok());
  const std::vector<std::size_t> sizes = {1000, 4096, 30'000, 200'001, 1 << 20};
  std::vector<std::uint32_t> spaces;
  for (const std::size_t size : sizes) spaces.push_back(world.add_namespace(size));
  for (std::uint64_t round = 0; round < 60; ++round) {
    for (std::size_t s = 0; s < sizes.size(); ++s) {
      // What waits for its disk write cannot make room.
      run_for_ns(*world.executor, 50 * kNsPerMs);
      const std::size_t num_blocks = sizes[s] > 100'000 ? 1 : 20;
      const auto outcomes = world.put(spaces[s], round * 1000, num_blocks, sizes[s]);
      REQUIRE_MESSAGE(count_done(outcomes) == num_blocks,
                      "round " << round << " size " << sizes[s]);
      CHECK(count_done(world.get(spaces[s], round * 1000, num_blocks, sizes[s])) == num_blocks);
    }
    CHECK(world.disk->allocated_bytes() <= world.options.disk_bytes);
  }
  world.check_consistency();
  CHECK(world.store->stats().host.evicted > 0);
  CHECK(world.store->stats().disk.evicted > 0);
}

TEST_CASE(
    "another size gets room where making it for a parent frees a slot that is no room itself") {
  StoreWorld world;
  world.options.eviction = EvictionMode::kLru;
  open_host_only(world, 4 << 20);
  constexpr std::size_t kSmallBytes = 32 << 10;
  const auto small = world.add_namespace(kSmallBytes);
  const auto large = world.add_namespace(1 << 20);
  // The oldest segment holds roots. Their children lie elsewhere, the fifth root's being the
  // oldest: when it goes that root can go too, from the segment that is to be emptied.
  for (std::uint64_t root = 0; root < 32; ++root) world.put(small, root * 100, 1, kSmallBytes);
  const auto put_child = [&](std::uint64_t root) {
    world.put(small, root * 100 + 1, 1, kSmallBytes, key_of(root * 100));
  };
  put_child(5);
  for (std::uint64_t root = 0; root < 32; ++root) {
    if (root != 5) put_child(root);
  }
  for (std::uint64_t other = 0; other < 62; ++other) {
    REQUIRE(count_done(world.put(small, 10'000 + other * 100, 1, kSmallBytes)) == 1);
  }
  REQUIRE(world.store->stats().host.evicted == 0);
  CHECK(count_done(world.put(large, 0, 1, 1 << 20)) == 1);
  world.check_consistency();
}

TEST_CASE(
    "leased blocks and parents are moved with the right bytes when another size needs the room") {
  StoreWorld world;
  open_host_only(world, 4 << 20);
  const auto small = world.add_namespace(8192);
  const auto large = world.add_namespace(1 << 20);
  // Chains over all segments; some of each are leased.
  for (std::uint64_t chain = 0; chain < 64; ++chain) world.put(small, chain * 100, 8, 8192);
  std::vector<std::uint64_t> lease_ids;
  for (std::uint64_t chain = 0; chain < 64; chain += 8) {
    auto lease = world.store->lease(small, keys_of(chain * 100, 3), true, 100 * kNsPerS);
    REQUIRE(lease.value().found.num_blocks == 3);
    lease_ids.push_back(lease.value().lease_id);
  }
  CHECK(count_done(world.put(large, 9000, 1, 1 << 20)) == 1);
  world.check_consistency();
  for (std::uint64_t chain = 0; chain < 64; chain += 8) {
    CHECK(count_done(world.get(small, chain * 100, 3, 8192)) == 3);
  }
  CHECK(count_done(world.get(large, 9000, 1, 1 << 20)) == 1);
  for (const std::uint64_t lease_id : lease_ids) CHECK(world.store->release(lease_id));
}

TEST_CASE("a host tier full of leases declines puts and still serves disk through staging") {
  StoreWorld world;
  world.options.host_bytes = 1 << 20;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(64 << 10);
  for (std::uint64_t chain = 0; chain < 4; ++chain) {
    world.put(space, chain * 100, 12, 64 << 10);
    world.flush();
  }
  world.put(space, 5000, 16, 64 << 10);
  world.flush();
  auto lease = world.store->lease(space, keys_of(5000, 16), true, 100 * kNsPerS);
  REQUIRE(lease.value().found.num_blocks == 16);
  for (const Tier tier : lease.value().found.tiers) REQUIRE(tier == Tier::kHost);
  CHECK(count_done(world.put(space, 6000, 1, 64 << 10)) == 0);
  CHECK(world.store->stats().host.declined == 1);
  for (std::uint64_t chain = 0; chain < 4; ++chain) {
    CHECK(count_done(world.get(space, chain * 100, 12, 64 << 10)) == 12);
  }
  CHECK(world.store->stats().staging_bytes_used == 0);
  world.check_consistency();
}
