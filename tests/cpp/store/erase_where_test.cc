// Erasing by namespace and by place: whole families, durably, with the space given back.
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

constexpr std::size_t kBlockBytes = 16'000;

NamespaceId id_of(std::uint64_t number) {
  return key_of(0x1000000 + number * 1000003 + kBlockBytes);
}

}  // namespace

TEST_CASE("one namespace's blocks go for good, in host and on disk, and others stay") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto one = world.add_namespace(kBlockBytes, 1);
  const auto two = world.add_namespace(kBlockBytes, 2);
  world.put(one, 0, 20, kBlockBytes);
  world.put(two, 0, 20, kBlockBytes);
  world.flush();
  CHECK(world.store->erase_where({id_of(1), {}}).value() == 20);
  CHECK(count_done(world.get(one, 0, 20, kBlockBytes)) == 0);
  CHECK(count_done(world.get(two, 0, 20, kBlockBytes)) == 20);
  CHECK(world.store->erase_where({id_of(7), {}}).value() == 0);
  world.check_consistency();
  REQUIRE(world.crash_and_open(false).is_ok());
  CHECK(count_done(world.get(world.add_namespace(kBlockBytes, 1), 0, 20, kBlockBytes)) == 0);
  CHECK(count_done(world.get(world.add_namespace(kBlockBytes, 2), 0, 20, kBlockBytes)) == 20);
  world.check_consistency();
}

TEST_CASE("a namespace that nobody has asked for since the open can be erased too") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  world.put(world.add_namespace(kBlockBytes, 1), 0, 20, kBlockBytes);
  world.flush();
  REQUIRE(world.restart().is_ok());
  CHECK(world.store->erase_where({id_of(1), {}}).value() == 20);
  CHECK(world.store->stats().disk.blocks == 0);
  REQUIRE(world.restart().is_ok());
  CHECK(world.store->stats().recovered_blocks == 0);
}

TEST_CASE("what is leased stays with its ancestors, and what continues it goes") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto one = world.add_namespace(kBlockBytes, 1);
  world.put(one, 0, 10, kBlockBytes);
  world.flush();
  const auto keys = keys_of(0, 4);
  const auto lease = world.store->lease(one, keys, true, 60 * kNsPerS);
  CHECK(world.store->erase_where({id_of(1), {}}).value() == 6);
  CHECK(count_done(world.get(one, 0, 10, kBlockBytes)) == 4);
  CHECK(world.store->release(lease.value().lease_id));
  CHECK(world.store->erase_where({{}, {}}).value() == 4);
  world.check_consistency();
}

TEST_CASE("blocks of a segment go with their descendants, and its file with them") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const auto one = world.add_namespace(kBlockBytes, 1);
  // 2 MiB a segment.
  for (std::uint64_t i = 0; i < 400; i += 20) world.put(one, i, 20, kBlockBytes);
  world.flush();
  const std::uint64_t blocks_before = world.store->stats().disk.blocks;
  REQUIRE(blocks_before == 400);
  const std::uint64_t num_erased = world.store->erase_where({{}, {1, 2}}).value();
  CHECK(num_erased > 0);
  CHECK(num_erased < blocks_before);
  auto directory = world.disk->make_directory();
  CHECK_FALSE(directory->stat_file("segment-00000001.kvtier").is_ok());
  CHECK_FALSE(directory->stat_file("segment-00000002.kvtier").is_ok());
  CHECK(directory->stat_file("segment-00000003.kvtier").is_ok());
  CHECK(count_done(world.get(one, 0, 400, kBlockBytes, false)) == 400 - num_erased);
  CHECK(world.store->erase_where({{}, {1, 99}}).value() == 0);
  world.check_consistency();
}

TEST_CASE("erasing beneath a lease looks at each block once, however long the chain is") {
  StoreWorld world;
  world.options.host_bytes = 64 << 20;
  world.options.path.clear();
  REQUIRE(world.open().is_ok());
  const auto one = world.add_namespace(512, 1);
  constexpr std::uint64_t kNumBlocks = 40'000;
  std::optional<BlockKey> parent;
  for (std::uint64_t i = 0; i < kNumBlocks; i += 1000) {
    REQUIRE(count_done(world.put(one, i, 1000, 512, parent)) == 1000);
    parent = key_of(i + 999);
  }
  // All but the last ten thousand are ancestors of what is leased.
  const auto keys = keys_of(0, kNumBlocks - 10'000);
  const auto lease = world.store->lease(one, keys, true, 60 * kNsPerS);
  REQUIRE(lease.value().found.num_blocks == keys.size());
  NamespaceId id = key_of(0x1000000 + 1000003 + 512);
  // Quadratic work would take minutes here.
  CHECK(world.store->erase_where({id, {}}).value() == 10'000);
  CHECK(world.store->erase(one, keys).value() == 0);
  CHECK(world.store->release(lease.value().lease_id));
  CHECK(world.store->erase(one, std::span(keys).first(1)).value() == keys.size());
  world.check_consistency();
}

TEST_CASE("a lease of what lies on disk alone protects as well") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  world.put(world.add_namespace(kBlockBytes, 1), 0, 10, kBlockBytes);
  world.flush();
  REQUIRE(world.restart().is_ok());
  const auto one = world.add_namespace(kBlockBytes, 1);
  const auto keys = keys_of(0, 10);
  const auto lease = world.store->lease(one, std::span(keys).first(4), true, 60 * kNsPerS);
  REQUIRE(lease.value().found.tiers[3] == Tier::kDisk);
  CHECK(world.store->erase(one, std::span(keys).first(1)).value() == 6);
  CHECK(world.store->erase_where({id_of(1), {}}).value() == 0);
  CHECK(count_done(world.get(one, 0, 10, kBlockBytes)) == 4);
  CHECK(world.store->release(lease.value().lease_id));
  CHECK(world.store->erase(one, std::span(keys).first(1)).value() == 4);
  world.check_consistency();
}
