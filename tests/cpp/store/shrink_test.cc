// A store opened with a smaller cap (D2): said with counts before anything goes, parents and what
// is needed moved, survivors readable, and below the cap when open returns.
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

constexpr std::size_t kBlockBytes = 32 << 10;
constexpr std::uint64_t kNumParted = 34;

void fill(StoreWorld& world) {
  world.options.disk_bytes = 16 << 20;
  world.options.host_bytes = 1 << 20;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(kBlockBytes);
  // Roots first and their chains later, so that parents and children lie in different segments.
  for (std::uint64_t chain = 0; chain < kNumParted; ++chain) {
    world.put(space, chain * 100, 1, kBlockBytes);
    run_for_ns(*world.executor, 10 * kNsPerMs);
  }
  for (std::uint64_t chain = 0; chain < kNumParted; ++chain) {
    world.put(space, chain * 100 + 1, 9, kBlockBytes, key_of(chain * 100));
    run_for_ns(*world.executor, 100 * kNsPerMs);
  }
  // Those that need nothing moved come last.
  for (std::uint64_t chain = kNumParted; chain < 40; ++chain) {
    world.put(space, chain * 100, 10, kBlockBytes);
    run_for_ns(*world.executor, 100 * kNsPerMs);
  }
  world.flush();
  REQUIRE(world.store->stats().disk.blocks == 400);
  REQUIRE(world.store->close(60 * kNsPerS).is_ok());
  world.store.reset();
}

}  // namespace

TEST_CASE("D2: half the cap is announced once with counts, and fits when open returns") {
  StoreWorld world;
  fill(world);
  world.options.disk_bytes = 8 << 20;
  std::size_t num_lines_at_removal = SIZE_MAX;
  world.hooks->on_remove = [&](const std::string& name) {
    if (name.starts_with("segment-") && num_lines_at_removal == SIZE_MAX) {
      num_lines_at_removal = world.num_log_lines_with("disk cap is smaller");
    }
    return Status::ok();
  };
  world.log.clear();
  REQUIRE(world.open().is_ok());
  CHECK(world.disk->allocated_bytes() <= world.options.disk_bytes);
  CHECK(world.num_log_lines_with("disk cap is smaller") == 1);
  CHECK(world.num_log_lines_with("blocks") == 1);
  world.check_consistency();
  const std::uint64_t num_blocks = world.store->stats().disk.blocks;
  CHECK(num_blocks > 100);
  CHECK(num_blocks < 260);
  const auto space = world.add_namespace(kBlockBytes);
  std::size_t num_done = 0;
  for (std::uint64_t chain = 0; chain < 40; ++chain) {
    const std::size_t num_found = world.lookup(space, chain * 100, 10);
    CHECK(count_done(world.get(space, chain * 100, 10, kBlockBytes)) == num_found);
    num_done += num_found;
  }
  CHECK(num_done == num_blocks);               // Each survivor hangs on a whole chain.
  CHECK(world.lookup(space, 3900, 10) == 10);  // The youngest chain stays.
  CHECK(world.store->stats().disk.corrupt == 0);
  // The line is handed over when open ends, yet it was written before the first file went.
  CHECK(num_lines_at_removal != SIZE_MAX);
}

TEST_CASE("D2: what survived a smaller cap survives a crash right after it") {
  for (const bool keeps_all : {true, false}) {
    CAPTURE(keeps_all);
    StoreWorld world;
    fill(world);
    world.options.disk_bytes = 6 << 20;
    REQUIRE(world.open().is_ok());
    const std::uint64_t num_blocks = world.store->stats().disk.blocks;
    REQUIRE(world.crash_and_open(keeps_all).is_ok());
    CHECK(world.store->stats().recovered_blocks == num_blocks);
    const auto space = world.add_namespace(kBlockBytes);
    std::size_t num_done = 0;
    for (std::uint64_t chain = 0; chain < 40; ++chain) {
      num_done += count_done(world.get(space, chain * 100, 10, kBlockBytes));
    }
    CHECK(num_done == num_blocks);
  }
}

TEST_CASE("D2: power lost while a store shrinks costs none of the blocks that are to stay") {
  // The last thing before old files go is that what was moved out of them is durable.
  StoreWorld reference;
  fill(reference);
  reference.options.disk_bytes = 8 << 20;
  REQUIRE(reference.open().is_ok());
  const std::uint64_t num_expected = reference.store->stats().disk.blocks;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    StoreWorld world(seed);
    fill(world);
    world.options.disk_bytes = 8 << 20;
    bool is_stopped = false;
    world.hooks->on_remove = [&](const std::string& name) {
      if (!name.starts_with("segment-")) return Status::ok();
      is_stopped = true;  // No file goes: as if the power went just then.
      return Status::from_errno(EIO, "cannot remove file: name=" + name);
    };
    CHECK_FALSE(world.open().is_ok());
    CHECK(is_stopped);
    world.hooks->on_remove = nullptr;
    REQUIRE(world.crash_and_open(false).is_ok());
    CHECK(world.disk->allocated_bytes() <= world.options.disk_bytes);
    const auto space = world.add_namespace(kBlockBytes);
    std::size_t num_done = 0;
    for (std::uint64_t chain = 0; chain < 40; ++chain) {
      num_done += count_done(world.get(space, chain * 100, 10, kBlockBytes));
    }
    CHECK(num_done + 64 >= num_expected);
    CHECK(world.store->stats().disk.corrupt == 0);
    world.check_consistency();
  }
}

TEST_CASE("a store shrinks to its smallest size step by step and grows again") {
  StoreWorld world;
  fill(world);
  for (const std::uint64_t cap_bytes : {12ull << 20, 5ull << 20, 2ull << 20, 1ull << 20}) {
    CAPTURE(cap_bytes);
    world.options.disk_bytes = cap_bytes;
    const Status opened = world.open();
    REQUIRE_MESSAGE(opened.is_ok(), opened.to_string());
    CHECK(world.disk->allocated_bytes() <= cap_bytes);
    world.check_consistency();
    const auto space = world.add_namespace(kBlockBytes);
    for (std::uint64_t chain = 0; chain < 40; ++chain)
      world.get(space, chain * 100, 10, kBlockBytes);
    REQUIRE(world.store->close(60 * kNsPerS).is_ok());
    world.store.reset();
  }
  world.options.disk_bytes = 16 << 20;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(kBlockBytes);
  CHECK(count_done(world.put(space, 9000, 10, kBlockBytes)) == 10);
  world.flush();
  CHECK(count_done(world.get(space, 9000, 10, kBlockBytes)) == 10);
}

TEST_CASE("a cap that leaves no room is an error with all numbers, and nothing is lost by it") {
  StoreWorld world;
  fill(world);
  world.options.disk_bytes = 1000;
  const Status opened = world.open();
  CHECK(opened.code() == StatusCode::kConfig);
  CHECK(opened.message().find("1000") != std::string::npos);
  world.options.disk_bytes = 16 << 20;
  REQUIRE(world.open().is_ok());
  CHECK(world.store->stats().recovered_blocks == 400);
}

TEST_CASE("many namespaces with long descriptions stay under the cap") {
  StoreWorld world;
  world.options.disk_bytes = 2 << 20;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(kBlockBytes);
  for (std::uint64_t number = 0; number < 100; ++number) {
    world.put(space, number, 1, kBlockBytes);
    run_for_ns(*world.executor, 10 * kNsPerMs);
  }
  world.flush();
  for (std::uint64_t number = 0; number < 300; ++number) {
    NamespaceOptions options;
    options.id = key_of(5'000'000 + number);
    options.description = "{\"model\": \"" + std::string(2000, 'x') + "\"}";
    options.block_bytes = 4096;
    REQUIRE(world.store->add_namespace(options).is_ok());
    REQUIRE(world.disk->allocated_bytes() <= world.options.disk_bytes);
  }
  CHECK(world.num_log_lines_with("would not fit under disk_bytes") > 0);
  // A few of ordinary length always find room, in a full tier too.
  REQUIRE(world.restart().is_ok());
  CHECK(world.store->stats().recovered_blocks > 40);
}

TEST_CASE("a full tier takes the blocks of a namespace that comes late") {
  StoreWorld world;
  world.options.eviction = EvictionMode::kLru;  // What follows counts on its order.
  world.options.disk_bytes = 2 << 20;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(kBlockBytes);
  for (std::uint64_t number = 0; number < 100; ++number) {
    world.put(space, number, 1, kBlockBytes);
    run_for_ns(*world.executor, 10 * kNsPerMs);
  }
  CHECK(world.store->stats().disk.evicted > 0);
  for (std::uint64_t number = 1; number < 40; ++number) {
    const auto late = world.add_namespace(kBlockBytes, number);
    CHECK(count_done(world.put(late, 0, 2, kBlockBytes)) == 2);
    world.flush();
    CHECK(world.disk->allocated_bytes() <= world.options.disk_bytes);
  }
  REQUIRE(world.restart().is_ok());
  CHECK(world.lookup(world.add_namespace(kBlockBytes, 39), 0, 2) == 2);
}

namespace {

/// The blocks that a whole shrink to half the cap keeps.
std::size_t count_kept_by_half() {
  StoreWorld reference;
  fill(reference);
  reference.options.disk_bytes = 8 << 20;
  REQUIRE(reference.open().is_ok());
  return reference.store->stats().disk.blocks;
}

std::size_t count_right(StoreWorld& world) {
  const auto space = world.add_namespace(kBlockBytes);
  std::size_t num_done = 0;
  for (std::uint64_t chain = 0; chain < 40; ++chain) {
    num_done += count_done(world.get(space, chain * 100, 10, kBlockBytes));
  }
  world.check_consistency();
  return num_done;
}

}  // namespace

TEST_CASE("D2: a shrink that ends anywhere before its end has lost nothing that was to stay") {
  const std::size_t num_expected = count_kept_by_half();
  std::size_t num_stopped = 0;
  for (std::uint64_t step = 0; step < 60; ++step) {
    for (const bool keeps_all : {true, false}) {
      CAPTURE(step);
      CAPTURE(keeps_all);
      StoreWorld world(step + 1);
      fill(world);
      world.options.disk_bytes = 8 << 20;
      // Ends in the midst of what makes the moves durable.
      world.options.default_timeout_ns = static_cast<TimeNs>(step) * 20 * kNsPerUs;
      const bool is_whole = world.open().is_ok();
      num_stopped += is_whole ? 0 : 1;
      world.crash(keeps_all);
      world.options.default_timeout_ns = 30 * kNsPerS;
      world.options.disk_bytes = 16 << 20;  // Whatever is still there is found.
      REQUIRE(world.open().is_ok());
      // Slots that moved blocks were written over held what was not to stay: those are misses now.
      CHECK(count_right(world) >= num_expected);
    }
  }
  CHECK(num_stopped > 20);
}

TEST_CASE("A3: blocks that cannot be read cost a shrink those blocks and nothing else") {
  const std::size_t num_expected = count_kept_by_half();
  StoreWorld world;
  fill(world);
  world.options.disk_bytes = 8 << 20;
  std::size_t num_refused = 0;
  world.hooks->on_read = [&](const std::string& name, std::uint64_t offset_bytes) {
    // Payload of moves only: recovery reads tables, which lie before it.
    if (!name.starts_with("segment-") || offset_bytes < (64u << 10)) return Status::ok();
    if (++num_refused % 8 != 0) return Status::ok();
    return Status::from_errno(EIO, "cannot read file: name=" + name);
  };
  world.log.clear();
  REQUIRE(world.open().is_ok());
  world.hooks->on_read = nullptr;
  REQUIRE(num_refused > 16);
  CHECK(world.num_log_lines_with("could not be moved") == 1);
  CHECK(world.disk->allocated_bytes() <= world.options.disk_bytes);
  const std::size_t num_done = count_right(world);
  CHECK(num_done < num_expected);
  CHECK(num_done > num_expected / 4);
}

TEST_CASE("a shrink on a slow disk moves what is pinned, and of the rest what it can in time") {
  const std::size_t num_expected = count_kept_by_half();
  StoreWorld world;
  fill(world);
  REQUIRE(world.open().is_ok());
  auto space = world.add_namespace(kBlockBytes);
  const std::size_t num_pinned_chains = 6;
  for (std::uint64_t chain = 0; chain < num_pinned_chains; ++chain) {
    auto pinned = world.store->pin(space, keys_of(chain * 100, 10));
    REQUIRE(pinned.is_ok());
    REQUIRE(pinned.value() == 10);
  }
  world.flush();
  REQUIRE(world.store->close(60 * kNsPerS).is_ok());
  world.store.reset();

  world.options.disk_bytes = 8 << 20;
  std::size_t num_moves = 0;
  world.hooks->on_read = [&](const std::string& name, std::uint64_t offset_bytes) {
    if (!name.starts_with("segment-") || offset_bytes < (64u << 10)) return Status::ok();
    ++num_moves;
    world.clock->advance_ns(2 * kNsPerS);
    return Status::ok();
  };
  const TimeNs start_ns = world.clock->now_ns();
  world.log.clear();
  REQUIRE(world.open().is_ok());
  world.hooks->on_read = nullptr;
  // All that is pinned, and not one more after the time is up.
  CHECK(world.clock->now_ns() - start_ns <= static_cast<TimeNs>(num_moves) * 2 * kNsPerS + kNsPerS);
  CHECK(num_moves >= 15);
  CHECK(num_moves <= 10 * num_pinned_chains + 16);
  CHECK(world.num_log_lines_with("could not be moved in time") == 1);
  space = world.add_namespace(kBlockBytes);
  for (std::uint64_t chain = 0; chain < num_pinned_chains; ++chain) {
    CHECK(count_done(world.get(space, chain * 100, 10, kBlockBytes)) == 10);
  }
  const std::size_t num_done = count_right(world);
  CHECK(num_done < num_expected);
  CHECK(world.disk->allocated_bytes() <= world.options.disk_bytes);
}

TEST_CASE(
    "B4: a device that takes no write while a store shrinks costs the moves and not the open") {
  StoreWorld world;
  fill(world);
  world.options.disk_bytes = 8 << 20;
  bool is_payload = false;
  world.hooks->on_read = [&](const std::string& name, std::uint64_t offset_bytes) {
    is_payload = name.starts_with("segment-") && offset_bytes >= (64u << 10);
    return Status::ok();
  };
  world.hooks->on_write = [&](const std::string& name) {
    if (!is_payload || !name.starts_with("segment-")) return Status::ok();
    return Status::from_errno(ENOSPC, "cannot write file: name=" + name);
  };
  REQUIRE(world.open().is_ok());
  world.hooks->on_read = nullptr;
  world.hooks->on_write = nullptr;
  CHECK(world.num_log_lines_with("could not be moved") == 1);
  CHECK(world.disk->allocated_bytes() <= world.options.disk_bytes);
  CHECK(count_right(world) > 0);
}

TEST_CASE("D2: opens that shrink and do not come to their end leave no more each time") {
  StoreWorld world;
  fill(world);
  // Less than one of the old segments: what stays moves into new ones.
  world.options.disk_bytes = 3 << 20;
  std::uint64_t first_bytes = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    CAPTURE(attempt);
    world.options.default_timeout_ns = 0;
    CHECK_FALSE(world.open().is_ok());
    world.crash(true);
    if (attempt == 0) first_bytes = world.disk->allocated_bytes();
    CHECK(world.disk->allocated_bytes() <= first_bytes);
  }
  world.options.default_timeout_ns = 30 * kNsPerS;
  REQUIRE(world.open().is_ok());
  CHECK(world.disk->allocated_bytes() <= world.options.disk_bytes);
  CHECK(count_right(world) > 0);
}
