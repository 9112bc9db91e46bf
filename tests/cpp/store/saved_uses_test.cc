// What a store knows of uses after a restart (C3): hot prompts stay when the cap is halved and when
// the tier fills up, whatever became of the file that says so.
#include <cerrno>

#include "format/uses_file.h"
#include "store/reuse_history.h"
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

constexpr std::size_t kBlockBytes = 32 << 10;
constexpr std::size_t kNumHot = 13;
constexpr std::size_t kHotBlocks = 4;
constexpr std::size_t kOneShotBlocks = 8;
constexpr EvictionMode kModes[] = {EvictionMode::kAdaptive, EvictionMode::kLru,
                                   EvictionMode::kS3Fifo};

std::uint64_t hot(std::uint64_t prompt) { return 100'000 + prompt * 100; }

void put_one_shots(StoreWorld& world, std::uint32_t space, std::uint64_t first,
                   std::uint64_t num_prompts) {
  for (std::uint64_t prompt = first; prompt < first + num_prompts; ++prompt) {
    world.put(space, 1'000'000 + prompt * 100, kOneShotBlocks, kBlockBytes);
    run_for_ns(*world.executor, 100 * kNsPerMs);
  }
}

std::size_t use_hot(StoreWorld& world, std::uint32_t space) {
  std::size_t num_done = 0;
  for (std::uint64_t prompt = 0; prompt < kNumHot; ++prompt) {
    num_done += count_done(world.get(space, hot(prompt), kHotBlocks, kBlockBytes));
  }
  return num_done;
}

/// Hot prompts come first and are used all the time; a few one-shots come last.
void fill(StoreWorld& world, EvictionMode eviction, std::uint64_t num_one_shots = 40) {
  world.options.disk_bytes = 16 << 20;
  world.options.host_bytes = 0;
  world.options.eviction = eviction;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(kBlockBytes);
  for (std::uint64_t prompt = 0; prompt < kNumHot; ++prompt) {
    world.put(space, hot(prompt), kHotBlocks, kBlockBytes);
  }
  world.flush();
  for (std::uint64_t prompt = 0; prompt < num_one_shots; prompt += 4) {
    put_one_shots(world, space, prompt, 4);
    if (prompt + 4 < num_one_shots) use_hot(world, space);
  }
  REQUIRE(world.lookup(space, hot(0), kHotBlocks) == kHotBlocks);
}

void close(StoreWorld& world) {
  REQUIRE(world.store->close(60 * kNsPerS).is_ok());
  world.store.reset();
}

std::size_t hot_hits_at(StoreWorld& world, std::uint64_t disk_bytes) {
  world.options.disk_bytes = disk_bytes;
  REQUIRE(world.open().is_ok());
  CHECK(world.disk->allocated_bytes() <= disk_bytes);
  world.check_consistency();
  return use_hot(world, world.add_namespace(kBlockBytes));
}

std::vector<std::byte>& uses_of(StoreWorld& world) {
  return world.disk->files().at(format::kUsesFileName);
}

}  // namespace

TEST_CASE("C3: hot prompts survive half the cap, by what an earlier run knew of them") {
  for (const EvictionMode eviction : kModes) {
    CAPTURE(static_cast<int>(eviction));
    StoreWorld world;
    fill(world, eviction);
    close(world);
    CHECK(hot_hits_at(world, 6 << 20) == kNumHot * kHotBlocks);
    // And what was moved is durable.
    REQUIRE(world.crash_and_open(false).is_ok());
    CHECK(use_hot(world, world.add_namespace(kBlockBytes)) == kNumHot * kHotBlocks);
  }
}

TEST_CASE("C3: a cap below the size of the old segments is filled with what is worth most") {
  StoreWorld world;
  fill(world, EvictionMode::kAdaptive);
  close(world);
  const std::size_t num_hits = hot_hits_at(world, 1 << 20);
  CHECK(num_hits == world.store->stats().disk.blocks);
  CHECK(num_hits * kBlockBytes > 800 << 10);
}

TEST_CASE("C3: where nothing can be made for it, open says so and keeps what it can") {
  StoreWorld world;
  fill(world, EvictionMode::kAdaptive);
  close(world);
  world.log.clear();
  world.hooks->on_allocate = [] { return Status::from_errno(ENOSPC, "cannot allocate file"); };
  CHECK(hot_hits_at(world, 6 << 20) == kNumHot * kHotBlocks);
  CHECK(world.num_log_lines_with("cannot make a segment file") == 1);
}

TEST_CASE("C3: without that knowledge they do not, and neither does anything else break") {
  StoreWorld world;
  fill(world, EvictionMode::kAdaptive);
  close(world);
  world.disk->files().erase(format::kUsesFileName);
  CHECK(hot_hits_at(world, 6 << 20) < kNumHot * kHotBlocks / 2);
  CHECK(world.num_log_lines_with("uses of blocks") == 0);
}

TEST_CASE("hot prompts outlive a restart and then a tier that fills up") {
  for (const EvictionMode eviction : kModes) {
    CAPTURE(static_cast<int>(eviction));
    StoreWorld world;
    fill(world, eviction, 56);
    close(world);
    REQUIRE(world.open().is_ok());
    const auto space = world.add_namespace(kBlockBytes);
    // Twice: a full tier under the adaptive policy takes no first uses.
    for (int turn = 0; turn < 2; ++turn) put_one_shots(world, space, 500, 12);
    CHECK(world.store->stats().disk.evicted > 0);
    CHECK(use_hot(world, space) == kNumHot * kHotBlocks);
  }
}

TEST_CASE("a damaged, foreign or hostile uses file is as none: one line, and everything is there") {
  using Change = std::function<void(StoreWorld&)>;
  const auto rewrite = [](StoreWorld& world, const std::function<void(format::UsesFile&)>& change) {
    auto file = format::decode_uses_file(uses_of(world));
    REQUIRE(file.is_ok());
    change(file.value());
    uses_of(world) = format::encode_uses_file(file.value());
  };
  const std::vector<Change> changes = {
      [](StoreWorld& world) { uses_of(world)[5000] ^= std::byte{1}; },
      [](StoreWorld& world) { uses_of(world)[20] ^= std::byte{1}; },
      [](StoreWorld& world) { uses_of(world).resize(5000); },
      [](StoreWorld& world) { uses_of(world).clear(); },
      [](StoreWorld& world) { uses_of(world).resize(format::kUsesFileBytesMax + 4096); },
      [&](StoreWorld& world) {
        rewrite(world, [](format::UsesFile& file) { file.store_id.bytes[0] ^= 1; });
      },
      [&](StoreWorld& world) {
        rewrite(world, [](format::UsesFile& file) { file.blocks[0].use_class = 200; });
      },
      [&](StoreWorld& world) {
        rewrite(world, [](format::UsesFile& file) { file.blocks[0].num_uses = 0; });
      },
      [&](StoreWorld& world) {
        rewrite(world, [](format::UsesFile& file) {
          for (auto& block : file.blocks) block.key_tag = 7;
        });
      },
      [&](StoreWorld& world) {
        rewrite(world, [](format::UsesFile& file) { file.uses.back().use_class = 200; });
      },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    StoreWorld world;
    fill(world, EvictionMode::kAdaptive);
    const std::uint64_t num_blocks = world.store->stats().disk.blocks;
    close(world);
    changes[i](world);
    world.log.clear();
    REQUIRE(world.open().is_ok());
    CHECK(world.num_log_lines_with("uses of blocks in earlier runs are not known") == 1);
    CHECK(world.store->stats().recovered_blocks == num_blocks);
    CHECK(world.store->stats().recover_damaged_entries == 0);
    CHECK(world.store->stats().unknown_files == 0);
    CHECK(world.disk->allocated_bytes() <= world.options.disk_bytes);
    const auto space = world.add_namespace(kBlockBytes);
    for (int turn = 0; turn < 3; ++turn) CHECK(use_hot(world, space) == kNumHot * kHotBlocks);
    world.check_consistency();
    // The next close writes a good one.
    close(world);
    CHECK(hot_hits_at(world, 8 << 20) == kNumHot * kHotBlocks);
  }
}

TEST_CASE("a close that cannot put the new uses file in place leaves the one before") {
  for (const bool keeps_all : {true, false}) {
    CAPTURE(keeps_all);
    StoreWorld world;
    fill(world, EvictionMode::kAdaptive);
    close(world);
    const std::vector<std::byte> before = uses_of(world);
    REQUIRE(world.open().is_ok());
    put_one_shots(world, world.add_namespace(kBlockBytes), 700, 2);
    bool is_whole = false;
    world.hooks->on_rename = [&](const std::string& source) {
      // Both lie there now, and neither they nor a full tier exceed the cap.
      CHECK(world.disk->allocated_bytes() <= world.options.disk_bytes);
      is_whole = format::decode_uses_file(world.disk->files().at(source)).is_ok();
      return Status::from_errno(EIO, "cannot rename file");
    };
    CHECK(world.store->close(60 * kNsPerS).is_ok());
    CHECK(is_whole);
    CHECK(world.num_log_lines_with("next open will not know the uses") == 1);
    world.hooks->on_rename = nullptr;
    world.crash(keeps_all);
    CHECK(uses_of(world) == before);
    CHECK(hot_hits_at(world, 6 << 20) == kNumHot * kHotBlocks);
    CHECK_FALSE(world.disk->files().contains(format::kNewUsesFileName));
  }
}

TEST_CASE("power lost at a close leaves an old or a new uses file, never a mixture") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    StoreWorld world(seed);
    fill(world, EvictionMode::kAdaptive, 20);
    close(world);
    REQUIRE(world.open().is_ok());
    use_hot(world, world.add_namespace(kBlockBytes));
    world.disk->faults().torn_write = seed % 2 == 0 ? 0.5 : 0;
    (void)world.store->close(60 * kNsPerS).is_ok();
    world.disk->faults() = SimFaults{};
    world.crash(false);
    CHECK(format::decode_uses_file(uses_of(world)).is_ok());
    CHECK(hot_hits_at(world, 4 << 20) == kNumHot * kHotBlocks);
  }
}

TEST_CASE("after a kill the uses of the last close still count, and later blocks are younger") {
  StoreWorld world;
  fill(world, EvictionMode::kLru);
  close(world);
  REQUIRE(world.open().is_ok());
  put_one_shots(world, world.add_namespace(kBlockBytes), 700, 4);
  world.flush();
  world.crash(true);
  CHECK(hot_hits_at(world, 6 << 20) == kNumHot * kHotBlocks);
  const auto space = world.add_namespace(kBlockBytes);
  for (std::uint64_t prompt = 700; prompt < 704; ++prompt) {
    CHECK(world.lookup(space, 1'000'000 + prompt * 100, kOneShotBlocks) == kOneShotBlocks);
  }
}

TEST_CASE("the uses file keeps to its share of a small cap") {
  StoreWorld world;
  world.options.disk_bytes = 1 << 20;
  world.options.host_bytes = 0;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(512);
  for (std::uint64_t number = 0; number < 3000; ++number) world.put(space, number * 10, 1, 512);
  world.flush();
  world.hooks->on_rename = [&world](const std::string&) {
    CHECK(world.disk->allocated_bytes() <= world.options.disk_bytes);
    return Status::ok();
  };
  close(world);
  CHECK(uses_of(world).size() > 8192);
  CHECK(uses_of(world).size() <= 16384);
  CHECK(format::decode_uses_file(uses_of(world)).value().blocks.size() > 1000);
  REQUIRE(world.open().is_ok());
  CHECK(world.num_log_lines_with("uses of blocks") == 0);
}

TEST_CASE("a directory that leaves no room for a large uses file loses no block to it") {
  constexpr std::size_t kLargeBytes = 4 << 20;
  StoreWorld world;
  world.options.disk_bytes = 320 << 20;
  world.options.host_bytes = 0;
  world.options.staging_bytes = 16 << 20;
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(kLargeBytes);
  for (std::uint64_t number = 0; number < 70; ++number) {
    world.put(space, number * 10, 1, kLargeBytes);
    run_for_ns(*world.executor, kNsPerS);
  }
  world.flush();
  const std::uint64_t num_blocks = world.store->stats().disk.blocks;
  close(world);
  // As an earlier build may have filled it: nothing is left beside segments and allowance.
  world.options.disk_bytes = 4 << 20;
  for (const auto& [name, bytes] : world.disk->files()) {
    if (!name.starts_with("segment-")) continue;
    const std::uint64_t num_pages = (bytes.size() + 4095) / 4096;
    world.options.disk_bytes += (num_pages + 2 + num_pages / 300) * 4096;
  }
  REQUIRE(world.options.disk_bytes > 256 << 20);
  REQUIRE(world.open().is_ok());
  CHECK(world.num_log_lines_with("disk cap is smaller") == 0);
  CHECK(world.store->stats().disk.blocks == num_blocks);
  close(world);
  CHECK(world.disk->allocated_bytes() <= world.options.disk_bytes);
  CHECK(format::decode_uses_file(uses_of(world)).value().blocks.size() == num_blocks);
}

TEST_CASE("what was erased or cleared is not named by a uses file") {
  StoreWorld world;
  fill(world, EvictionMode::kAdaptive, 8);
  close(world);
  const auto names = [&world](std::uint64_t number) {
    const auto file = format::decode_uses_file(uses_of(world));
    REQUIRE(file.is_ok());
    const std::uint32_t tag = store::key_tag_of(0, key_of(number));
    for (const auto& block : file.value().blocks) {
      if (block.key_tag == tag) return true;
    }
    for (const auto& use : file.value().uses) {
      if (use.key_tag == tag) return true;
    }
    return false;
  };
  CHECK(names(hot(0)));
  REQUIRE(world.open().is_ok());
  const auto space = world.add_namespace(kBlockBytes);
  REQUIRE(world.store->erase(space, keys_of(hot(0), 1)).is_ok());
  CHECK_FALSE(world.disk->files().contains(format::kUsesFileName));
  close(world);
  for (std::uint64_t i = 0; i < kHotBlocks; ++i) CHECK_FALSE(names(hot(0) + i));
  CHECK(names(hot(1)));
  REQUIRE(world.open().is_ok());
  REQUIRE(world.store->clear(true, true).is_ok());
  CHECK_FALSE(world.disk->files().contains(format::kUsesFileName));
  close(world);
  CHECK_FALSE(names(hot(1)));
}
