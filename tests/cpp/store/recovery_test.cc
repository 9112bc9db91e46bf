// What opening makes of slot tables: links, doubles, orphans, bounds.
#include "format/segment_header.h"
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

TEST_CASE("families are linked again, so that a delete takes them after a restart too") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  auto space = world.add_namespace(4096);
  world.put(space, 0, 10, 4096);
  world.put(space, 100, 5, 4096, key_of(4));
  world.put(space, 200, 3, 4096);
  world.flush();
  REQUIRE(world.restart().is_ok());
  space = world.add_namespace(4096);
  CHECK(world.store->erase(space, keys_of(4, 1)).value() == 6 + 5);
  CHECK(world.lookup(space, 0, 10) == 4);
  CHECK(world.lookup(space, 200, 3) == 3);
  world.check_consistency();
}

TEST_CASE("the order of eviction survives a restart") {
  StoreWorld world;
  world.options.eviction = EvictionMode::kLru;  // What follows counts on its order.
  world.options.host_bytes = 0;
  world.options.disk_bytes = 4 << 20;
  REQUIRE(world.open().is_ok());
  auto space = world.add_namespace(64 << 10);
  for (std::uint64_t number = 0; number < 40; ++number) world.put(space, number, 1, 64 << 10);
  world.flush();
  REQUIRE(world.restart().is_ok());
  space = world.add_namespace(64 << 10);
  const std::uint64_t num_evicted = world.store->stats().disk.evicted;
  std::uint64_t number = 1000;
  while (world.store->stats().disk.evicted < num_evicted + 10)
    world.put(space, number++, 1, 64 << 10);
  for (std::uint64_t old = 0; old < 10; ++old) CHECK(world.lookup(space, old, 1) == 0);
  for (std::uint64_t young = 10; young < 40; ++young) CHECK(world.lookup(space, young, 1) == 1);
}

TEST_CASE(
    "fewer blocks than are on disk are taken when the index is smaller, and never a broken chain") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  world.put(world.add_namespace(4096), 0, 100, 4096);
  world.put(world.add_namespace(4096), 1000, 100, 4096);
  world.flush();
  REQUIRE(world.store->close(60 * kNsPerS).is_ok());
  world.store.reset();
  world.options.blocks_max = 60;
  REQUIRE(world.open().is_ok());
  CHECK(world.store->stats().recovered_blocks <= 60);
  world.check_consistency();
  const auto space = world.add_namespace(4096);
  CHECK(count_done(world.get(space, 0, 100, 4096)) == world.lookup(space, 0, 100));
  // A full index declines.
  world.put(space, 5000, 100, 4096, {}, false);
  CHECK(world.store->stats().index_entries <= 60);
  world.check_consistency();
}

TEST_CASE(
    "blocks of namespaces that nobody attaches keep their room and come back when somebody does") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  world.put(world.add_namespace(4096, 1), 0, 20, 4096);
  world.put(world.add_namespace(4096, 2), 0, 20, 4096);
  world.flush();
  for (int round = 0; round < 3; ++round) {
    REQUIRE(world.restart().is_ok());
    const auto one = world.add_namespace(4096, 1);
    world.put(one, 1000 + static_cast<std::uint64_t>(round) * 100, 5, 4096);
    world.flush();
  }
  const auto two = world.add_namespace(4096, 2);
  CHECK(count_done(world.get(two, 0, 20, 4096)) == 20);
}

TEST_CASE("a segment file whose making a kill cut short is removed without a word of damage") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  world.put(world.add_namespace(4096, 1), 0, 20, 4096);
  world.flush();
  const std::string name = format::segment_file_name(99);
  for (const std::size_t length_bytes : {0u, 1u << 20}) {
    CAPTURE(length_bytes);
    world.disk->crash(true);
    world.disk->files()[name].assign(length_bytes, std::byte{0});
    REQUIRE(world.open().is_ok());
    CHECK(world.num_log_lines_with("damaged or foreign") == 0);
    CHECK_FALSE(world.disk->files().contains(name));
    CHECK(count_done(world.get(world.add_namespace(4096, 1), 0, 20, 4096)) == 20);
  }
  // With something in its table a file was whole once: that is damage, and said.
  world.disk->crash(true);
  world.disk->files()[name].assign(1u << 20, std::byte{0});
  world.disk->files()[name][format::kSegmentHeaderBytes] = std::byte{1};
  REQUIRE(world.open().is_ok());
  CHECK(world.num_log_lines_with("damaged or foreign") == 1);
}

TEST_CASE("corruption found after a crash is called torn, after a clean close it is not") {
  for (const bool is_clean : {true, false}) {
    CAPTURE(is_clean);
    StoreWorld world;
    REQUIRE(world.open().is_ok());
    world.put(world.add_namespace(4096), 0, 5, 4096, {}, false);
    world.flush();
    REQUIRE((is_clean ? world.restart() : world.crash_and_open(true)).is_ok());
    CHECK(world.store->stats().is_recovered_clean == is_clean);
    const auto space = world.add_namespace(4096);
    world.disk->faults().read_flip = 1;
    world.get(space, 0, 5, 4096, false);
    CHECK(world.store->stats().disk.corrupt == 5);
    CHECK(world.store->stats().disk.torn == (is_clean ? 0 : 5));
  }
}

TEST_CASE("a store killed over and over again keeps what each flush promised") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    StoreWorld world(seed);
    world.options.disk_bytes = 64 << 20;
    if (seed % 2 == 0) world.options.host_bytes = 0;
    Random random(seed);
    std::uint64_t num_durable = 0;
    for (int round = 0; round < 12; ++round) {
      REQUIRE((round == 0 ? world.open() : world.crash_and_open(random.below(2) == 0)).is_ok());
      const auto space = world.add_namespace(10'000);
      REQUIRE(world.lookup(space, 0, 2000) >= num_durable);
      REQUIRE(count_done(world.get(space, 0, num_durable, 10'000)) == num_durable);
      const std::size_t num_blocks = 1 + random.below(30);
      std::optional<BlockKey> parent;
      if (num_durable > 0) parent = key_of(num_durable - 1);
      world.put(space, num_durable, num_blocks, 10'000, parent);
      if (random.below(3) != 0) {
        world.flush();
        num_durable += num_blocks;
      } else {
        run_for_ns(*world.executor, static_cast<TimeNs>(random.below(100)) * kNsPerMs);
      }
      world.check_consistency();
    }
  }
}
