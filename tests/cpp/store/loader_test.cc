// Reads from disk: one for all who wait, into host or staging, checked before anybody sees them.
#include <thread>

#include "real_store.h"

using namespace kvtier;
using namespace kvtier::testing;

TEST_CASE("a block asked for twice in one get is read once") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  world.put(world.add_namespace(50'000), 0, 2, 50'000);
  world.flush();
  REQUIRE(world.restart().is_ok());
  const auto space = world.add_namespace(50'000);
  const std::uint64_t before = world.disk->num_reads();
  const std::vector<BlockKey> keys = {key_of(0), key_of(0), key_of(1), key_of(0)};
  std::vector<std::vector<std::byte>> targets(4, std::vector<std::byte>(50'000));
  std::vector<std::byte*> addresses;
  for (auto& target : targets) addresses.push_back(target.data());
  GetRequest request;
  request.namespace_index = space;
  request.keys = keys;
  request.targets = addresses;
  request.timeout_ns = kNsPerS;
  CHECK(count_done(world.store->get(request).value()) == 4);
  CHECK(world.disk->num_reads() - before == 2);
  for (const std::size_t i : {0, 1, 3}) CHECK(targets[i] == payload_of(0, 50'000));
  CHECK(targets[2] == payload_of(1, 50'000));
  world.check_consistency();
}

TEST_CASE("eight threads that want the same blocks at once share the reads") {
  for (const std::uint64_t host_bytes : {std::uint64_t{8} << 20, std::uint64_t{0}}) {
    CAPTURE(host_bytes);
    RealStore real;
    real.options.host_bytes = host_bytes;
    REQUIRE(real.open().is_ok());
    const std::size_t block_bytes = 100'000;
    real.put(real.add_namespace(block_bytes), 0, 10, block_bytes);
    REQUIRE(real.store->flush(10 * kNsPerS).is_ok());
    CHECK(real.store->close(10 * kNsPerS).is_ok());
    REQUIRE(real.open().is_ok());
    const auto space = real.add_namespace(block_bytes);
    std::vector<std::thread> threads;
    std::atomic<std::size_t> num_done{0};
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] { num_done += count_done(real.get(space, 0, 10, block_bytes)); });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(num_done.load() == 80);
    CHECK(real.num_wrong.load() == 0);
    const StoreStats stats = real.store->stats();
    CHECK(stats.hit_blocks == 80);
    // With a host tier each block is read once; without, as often as nobody else was at it.
    if (host_bytes > 0) CHECK(stats.disk.bytes_read == 10 * 102'400);
    CHECK(stats.disk.bytes_read <= 80 * 102'400);
    CHECK(stats.staging_bytes_used == 0);
  }
}

TEST_CASE("what was read wrong is told to all and served to nobody") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    StoreWorld world(seed);
    world.options.host_bytes = seed % 2 == 0 ? 0 : 8 << 20;
    REQUIRE(world.open().is_ok());
    world.put(world.add_namespace(9000), 0, 40, 9000, {}, false);
    world.flush();
    REQUIRE(world.restart().is_ok());
    const auto space = world.add_namespace(9000);
    world.disk->faults().read_flip = 0.3;
    world.disk->faults().misdirected_read = 0.2;
    const auto outcomes = world.get(space, 0, 40, 9000, false);
    world.disk->faults() = SimFaults{};
    for (std::size_t i = 0; i < 40; ++i) {
      CHECK((outcomes[i] == Outcome::kDone || outcomes[i] == Outcome::kCorrupt));
      CHECK(world.lookup(space, i, 1) == (outcomes[i] == Outcome::kDone ? 1 : 0));
    }
    CHECK(world.store->stats().disk.corrupt == 40 - count_done(outcomes));
    world.check_consistency();
    CHECK(world.store->stats().staging_bytes_used == 0);
    // The holes are filled by the next put.
    CHECK(count_done(world.put(space, 0, 40, 9000, {}, false)) == 40);
    CHECK(count_done(world.get(space, 0, 40, 9000, false)) == 40);
  }
}

TEST_CASE("a block that is deleted while it is being read is not served later") {
  StoreWorld world;
  world.options.host_bytes = 0;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(9000);
  world.put(space, 0, 4, 9000);
  world.flush();
  world.disk->set_stalled(true);
  world.timeout_ns = 100 * kNsPerMs;
  CHECK(world.get(space, 0, 4, 9000)[0] == Outcome::kTimeout);  // Its reads go on.
  CHECK_FALSE(world.store->erase(space, keys_of(0, 1)).is_ok());
  CHECK(world.lookup(space, 0, 4) == 0);
  world.disk->set_stalled(false);
  run_for_ns(*world.executor, 3 * kNsPerS);
  CHECK(world.lookup(space, 0, 4) == 0);
  CHECK(world.store->stats().disk.blocks == 0);
  CHECK(world.store->stats().staging_bytes_used == 0);
  world.check_consistency();
}

TEST_CASE("want of descriptors is no reason to give blocks up") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  world.put(world.add_namespace(9000), 0, 4, 9000);
  world.flush();
  REQUIRE(world.restart().is_ok());
  const auto space = world.add_namespace(9000);
  world.hooks->on_open = [](const std::string& name, const OpenFlags&) {
    return Status::from_errno(EMFILE, "cannot open file: name=" + name);
  };
  CHECK(world.get(space, 0, 4, 9000)[0] == Outcome::kTimeout);
  world.hooks->on_open = nullptr;
  CHECK(world.lookup(space, 0, 4) == 4);
  CHECK(count_done(world.get(space, 0, 4, 9000)) == 4);
  world.check_consistency();
}
