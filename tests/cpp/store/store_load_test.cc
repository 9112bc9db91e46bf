// Loads: what arrives in an engine's memory is right or named, wherever the blocks lay.
#include "mover_double.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

constexpr std::size_t kBytes = 4096;

struct LoadWorld : StoreWorld {
  explicit LoadWorld(std::uint64_t seed = 1, std::uint64_t host_bytes = 8 << 20)
      : StoreWorld(seed) {
    options.host_bytes = host_bytes;
    REQUIRE(open().is_ok());
    space = add_namespace(kBytes);
  }
  /// `num_blocks` blocks from `first` on, on disk alone.
  void put_cold(std::uint64_t first, std::size_t num_blocks) {
    for (std::size_t i = 0; i < num_blocks; i += 100) {
      std::optional<BlockKey> parent;
      if (i > 0) parent = key_of(first + i - 1);
      const std::size_t num_next = std::min<std::size_t>(100, num_blocks - i);
      REQUIRE(count_done(put(space, first + i, num_next, kBytes, parent)) == num_next);
      flush();
    }
    REQUIRE(store->clear(true, false).is_ok());
  }
  void end(const PagedCall& call) {
    REQUIRE(store->wait_job(*call.job, 60 * kNsPerS).is_ok());
    CHECK(call.mover->is_finished);
    check_memory(call);
    check_consistency();
    const StoreStats stats = store->stats();
    CHECK(stats.hit_blocks == stats.host.hits + stats.disk.hits);
  }
  std::uint32_t space = 0;
};

}  // namespace

TEST_CASE("blocks in host memory are on their way when the call returns") {
  LoadWorld world;
  world.put(world.space, 0, 20, kBytes);
  PagedCall load = start_load(world, {world.space, 0, 25, kBytes}, {.ends_by_itself = false});
  CHECK(load.mover->num_under_way() == 1);
  CHECK(load.mover->is_finished);
  load.mover->end_next();
  world.end(load);
  CHECK(count_done(load.outcomes()) == 20);
  CHECK(load.undefined().empty());
  CHECK(world.store->stats().host.hits == 20);
  CHECK(world.store->stats().miss_blocks == 5);
}

TEST_CASE("blocks on disk, in host and in both arrive, in staging buffers too") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const std::uint64_t host_bytes :
         {std::uint64_t{0}, std::uint64_t{1} << 20, std::uint64_t{8} << 20}) {
      CAPTURE(seed);
      CAPTURE(host_bytes);
      LoadWorld world(seed, host_bytes);
      world.put_cold(0, 400);
      world.get(world.space, 0, seed * 10, kBytes);
      PagedCall load = start_load(world, {world.space, 0, 410, kBytes});
      world.end(load);
      CHECK(count_done(load.outcomes()) == 400);
      CHECK(load.undefined().empty());
    }
  }
}

TEST_CASE("a load of more than all buffers goes on as its own moves end") {
  LoadWorld world(1, 0);
  world.put_cold(0, 2000);
  PagedCall load = start_load(world, {world.space, 0, 2000, kBytes}, {.ends_by_itself = false});
  while (!load.job->is_ended()) {
    (void)world.store->wait_job(*load.job, kNsPerMs).is_ok();
    if (load.mover->num_under_way() > 0) load.mover->end_next();
  }
  world.end(load);
  CHECK(count_done(load.outcomes()) == 2000);
}

TEST_CASE("rot in a host slot is found by the load, named, and removed with its children") {
  LoadWorld world;
  world.options.path.clear();
  world.put(world.space, 0, 10, kBytes);
  PagedCall load = start_load(world, {world.space, 0, 10, kBytes}, {.ends_by_itself = false});
  world.store->stats();
  load.mover->next_slot()[100] ^= std::byte{1};  // Of block 0.
  load.mover->end_next();
  world.end(load);
  CHECK(load.outcomes()[0] == Outcome::kCorrupt);
  CHECK(load.outcomes()[1] == Outcome::kMiss);
  CHECK(load.undefined().size() == 10);  // Beyond the first one nothing is promised.
  CHECK(world.store->stats().host.corrupt == 1);
  CHECK(world.store->stats().host.load_failures == 1);
  CHECK(world.lookup(world.space, 0, 10) == 0);
}

TEST_CASE("what is damaged on the way fails that load only") {
  LoadWorld world;
  world.put(world.space, 0, 10, kBytes);
  PagedCall load = start_load(world, {world.space, 0, 10, kBytes}, {.is_prefix = false}, {4});
  world.end(load);
  CHECK(load.outcomes()[4] == Outcome::kFailed);
  CHECK(count_done(load.outcomes()) == 9);
  CHECK(load.undefined() == std::set<std::size_t>{4});
  CHECK(world.lookup(world.space, 0, 10) == 10);
  CHECK(world.num_log_lines_with("right in host memory") == 1);
}

TEST_CASE("a block that rots on disk ends the prefix; no later one counts") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    LoadWorld world(seed);
    world.put_cold(0, 30);
    world.disk->faults().read_flip = 0.2;
    PagedCall load = start_load(world, {world.space, 0, 30, kBytes});
    world.end(load);
    const std::size_t num_done = count_done(load.outcomes());
    CHECK(num_done < 30);
    for (std::size_t i = 0; i < num_done; ++i) CHECK(load.outcomes()[i] == Outcome::kDone);
    CHECK(load.outcomes()[num_done] == Outcome::kCorrupt);
    for (std::size_t i = num_done + 1; i < 30; ++i) CHECK(load.outcomes()[i] == Outcome::kMiss);
    CHECK(world.store->stats().disk.load_failures >= world.store->stats().disk.corrupt);
  }
}

TEST_CASE("blocks of a load are not evicted before its move has ended") {
  LoadWorld world(1, 1 << 20);
  world.options.path.clear();
  world.put(world.space, 0, 100, kBytes);
  PagedCall load = start_load(world, {world.space, 0, 100, kBytes}, {.ends_by_itself = false});
  for (std::uint64_t i = 0; i < 20; ++i) world.put(world.space, 1000 + 100 * i, 100, kBytes);
  load.mover->end_next();
  world.end(load);
  CHECK(count_done(load.outcomes()) == 100);
}

TEST_CASE("blocks deleted and cleared under a load still arrive whole") {
  for (const bool is_clear : {false, true}) {
    LoadWorld world;
    world.put(world.space, 0, 10, kBytes);
    PagedCall load = start_load(world, {world.space, 0, 10, kBytes}, {.ends_by_itself = false});
    if (is_clear) {
      REQUIRE(world.store->clear(true, true).is_ok());
    } else {
      REQUIRE(world.store->erase(world.space, keys_of(0, 1)).is_ok());
    }
    CHECK(world.lookup(world.space, 0, 10) == 0);
    world.put(world.space, 2000, 100, kBytes);
    load.mover->end_next();
    world.end(load);
    CHECK(count_done(load.outcomes()) == 10);
  }
}

TEST_CASE("a cancelled or late load ends when its moves have, and names what they touched") {
  for (const bool is_cancelled : {false, true}) {
    CAPTURE(is_cancelled);
    LoadWorld world;
    world.put(world.space, 0, 8, kBytes);
    PagedCall load = start_load(world, {world.space, 0, 8, kBytes},
                                {.timeout_ns = kNsPerS, .ends_by_itself = false});
    if (is_cancelled) CHECK(world.store->cancel_job(*load.job).is_ok());
    CHECK(world.store->wait_job(*load.job, 10 * kNsPerS).code() == StatusCode::kTimeout);
    CHECK(load.mover->num_cancels == 1);
    load.mover->end_next();
    world.end(load);
    CHECK(load.outcomes()[0] == (is_cancelled ? Outcome::kCancelled : Outcome::kTimeout));
    CHECK(load.undefined().size() == 8);
    CHECK(world.lookup(world.space, 0, 8) == 8);
  }
}

TEST_CASE("a load under way at close ends with it") {
  LoadWorld world;
  world.put_cold(0, 100);
  PagedCall load = start_load(world, {world.space, 0, 100, kBytes});
  REQUIRE(world.store->close(10 * kNsPerS).is_ok());
  REQUIRE(load.job->is_ended());
  check_memory(load);
}

TEST_CASE("random loads under disk faults, cancels and pressure are right or say so") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    LoadWorld world(seed, seed % 3 == 0 ? 0 : 1 << 20);
    Random random(seed);
    for (std::uint64_t i = 0; i < 10; ++i) world.put(world.space, i * 100, 60, kBytes);
    world.flush();
    if (seed % 2 == 0) REQUIRE(world.store->clear(true, false).is_ok());
    if (seed % 4 == 1) world.disk->faults().read_flip = 0.01;
    if (seed % 4 == 2) world.disk->faults().read_error = 0.02;
    std::vector<PagedCall> loads;
    for (int round = 0; round < 12; ++round) {
      std::set<std::size_t> damaged;
      if (random.below(4) == 0) damaged.insert(random.below(60));
      const PagedOptions options{.timeout_ns = random.below(5) == 0 ? kNsPerMs : 30 * kNsPerS,
                                 .is_prefix = random.below(2) == 0};
      loads.push_back(
          start_load(world, {world.space, random.below(10) * 100, 60, kBytes}, options, damaged));
      if (random.below(4) == 0) (void)world.store->cancel_job(*loads.back().job).is_ok();
      if (random.below(3) == 0) world.put(world.space, 5000 + 100 * random.below(50), 40, kBytes);
    }
    for (const PagedCall& load : loads) world.end(load);
  }
}
