// How long loads take: the sum itself, and lookups cut by it on a simulated disk of 50 MB/s.
#include "store/load_time.h"

#include "store_world.h"

using namespace kvtier;
using namespace kvtier::store;
using namespace kvtier::testing;

namespace {

constexpr std::uint64_t kMb = 1'000'000;
constexpr std::size_t kBlockBytes = 100'000;
constexpr std::uint64_t kSlotBytes = 102'400;
constexpr double kBytesPerS = 50e6;

/// 200 blocks that lie on disk only, after as many loads of others as make the rate known.
struct SlowWorld {
  explicit SlowWorld(bool is_measured = true) : world(1, slow()) {
    world.options.staging_bytes = 2 << 20;
    REQUIRE(world.open().is_ok());
    space = world.add_namespace(kBlockBytes);
    for (std::uint64_t first = 0; first < 300; first += 20) {
      std::optional<BlockKey> parent;
      if (first > 0 && first != 200) parent = key_of(first - 1);
      world.put(space, first, 20, kBlockBytes, parent);
      world.flush();
    }
    REQUIRE(world.restart().is_ok());
    space = world.add_namespace(kBlockBytes);
    REQUIRE(world.lookup(space, 0, 200) == 200);
    if (is_measured) REQUIRE(count_done(world.get(space, 200, 60, kBlockBytes)) == 60);
  }
  static SimOptions slow() {
    SimOptions options;
    options.bytes_per_s = kBytesPerS;
    return options;
  }
  LookupResult lookup(std::vector<BlockKey> keys, bool is_prefix, TimeNs max_load_ns) {
    auto found = world.store->lookup(space, keys, is_prefix, max_load_ns);
    REQUIRE(found.is_ok());
    return found.value();
  }

  StoreWorld world;
  std::uint32_t space = 0;
};

}  // namespace

TEST_CASE("load times add up in order, behind what is queued") {
  LoadRates rates;
  rates.read_bytes_per_s = 50e6;
  rates.copy_bytes_per_s = 1e9;
  rates.queued_read_bytes = 10 * kMb;
  LoadTime load_time(rates);
  CHECK(load_time.add(Tier::kHost, 100 * kMb) == doctest::Approx(0.1));  // Nothing to queue for.
  CHECK(load_time.add(Tier::kDisk, 5 * kMb) == doctest::Approx(0.4));
  CHECK(load_time.add(Tier::kDisk, 5 * kMb) == doctest::Approx(0.5));
  CHECK(load_time.add(Tier::kHost, 100 * kMb) == doctest::Approx(0.6));
  LoadTime unknown(LoadRates{});
  CHECK(unknown.add(Tier::kDisk, 1ull << 40) == 0);
}

TEST_CASE("I5: a lookup counts what a slow disk delivers in time, and a get then keeps to it") {
  SlowWorld slow;
  StoreWorld& world = slow.world;
  CHECK(world.store->stats().disk.read_bytes_per_s == doctest::Approx(kBytesPerS).epsilon(0.15));
  for (const TimeNs max_load_ns : {40 * kNsPerMs, 100 * kNsPerMs, 200 * kNsPerMs}) {
    CAPTURE(max_load_ns);
    const LookupResult found = slow.lookup(keys_of(0, 200), true, max_load_ns);
    const double ideal = static_cast<double>(max_load_ns) / 1e9 * kBytesPerS / kSlotBytes;
    CHECK(static_cast<double>(found.num_blocks) > 0.8 * ideal);
    CHECK(static_cast<double>(found.num_blocks) < 1.2 * ideal);
    for (std::size_t i = 0; i < 200; ++i) {
      CHECK((found.tiers[i] == Tier::kDisk) == (i < found.num_blocks));
    }
    const TimeNs start_ns = world.clock->now_ns();
    CHECK(count_done(world.get(slow.space, 0, found.num_blocks, kBlockBytes)) == found.num_blocks);
    const TimeNs needed_ns = world.clock->now_ns() - start_ns;
    CHECK(needed_ns < max_load_ns * 5 / 4);
    // Out of host again, for the next round.
    REQUIRE(world.store->clear(true, false).is_ok());
  }
  CHECK(slow.lookup(keys_of(0, 200), true, kNeverNs).num_blocks == 200);
  CHECK(slow.lookup(keys_of(0, 200), true, 10 * kNsPerS).num_blocks == 200);
  CHECK(slow.lookup(keys_of(0, 200), true, 0).num_blocks == 0);
  CHECK(slow.lookup(keys_of(0, 200), true, kNsPerMs).num_blocks == 0);
}

TEST_CASE("nothing is cut before a rate is known") {
  SlowWorld slow(false);
  CHECK(slow.world.store->stats().disk.read_bytes_per_s == 0);
  CHECK(slow.lookup(keys_of(0, 200), true, 0).num_blocks == 200);
}

TEST_CASE("blocks in host cost no disk time, and without prefix the order of the keys counts") {
  SlowWorld slow;
  StoreWorld& world = slow.world;
  REQUIRE(count_done(world.get(slow.space, 0, 30, kBlockBytes)) == 30);
  const LookupResult found = slow.lookup(keys_of(0, 200), true, 42 * kNsPerMs);
  CHECK(found.num_blocks > 30 + 14);
  CHECK(found.num_blocks < 30 + 26);
  // Every second key is unknown: no time for those, and the known ones are counted in order.
  std::vector<BlockKey> keys;
  for (std::uint64_t i = 0; i < 100; ++i) {
    keys.push_back(key_of(100 + i));
    keys.push_back(key_of(5000 + i));
  }
  const LookupResult holes = slow.lookup(keys, false, 42 * kNsPerMs);
  CHECK(holes.num_blocks > 14);
  CHECK(holes.num_blocks < 26);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    CHECK((holes.tiers[i] != Tier::kNone) == (i % 2 == 0 && i < 2 * holes.num_blocks));
  }
}

TEST_CASE("an old measurement cuts less and less") {
  SlowWorld slow;
  const std::size_t num_fresh = slow.lookup(keys_of(0, 200), true, 40 * kNsPerMs).num_blocks;
  slow.world.clock->advance_ns(20 * kNsPerS);
  const std::size_t num_later = slow.lookup(keys_of(0, 200), true, 40 * kNsPerMs).num_blocks;
  CHECK(num_later > 3 * num_fresh);
  CHECK(num_later < 5 * num_fresh);
  slow.world.clock->advance_ns(100 * kNsPerS);
  CHECK(slow.lookup(keys_of(0, 200), true, 40 * kNsPerMs).num_blocks == 200);
}

TEST_CASE("a stalled disk counts nothing, however much time there is") {
  SlowWorld slow;
  slow.world.disk->set_stalled(true);
  slow.world.timeout_ns = 5 * kNsPerS;
  CHECK(count_done(slow.world.get(slow.space, 0, 5, kBlockBytes)) == 0);
  CHECK(slow.lookup(keys_of(0, 200), true, 3600 * kNsPerS).num_blocks == 0);
  slow.world.disk->set_stalled(false);
}

TEST_CASE("what is expected of a disk that was slow once grows until somebody tries again") {
  SlowWorld slow;
  const double measured = slow.world.store->stats().disk.read_bytes_per_s;
  CHECK(slow.world.store->stats().disk.expected_read_bytes_per_s ==
        doctest::Approx(measured).epsilon(0.1));
  slow.world.clock->advance_ns(60 * kNsPerS);
  CHECK(slow.world.store->stats().disk.read_bytes_per_s == doctest::Approx(measured));
  CHECK(slow.world.store->stats().disk.expected_read_bytes_per_s > 10 * measured);
}
