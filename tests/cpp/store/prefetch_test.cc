// Prefetch: blocks come to host before anyone asks, behind gets, and within bounds.
#include "job_calls.h"
#include "testing/without_leak_check.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

constexpr std::size_t kBytes = 4096;

std::size_t num_in_host(StoreWorld& world, std::uint32_t space, std::size_t num_blocks) {
  auto found = world.store->lookup(space, keys_of(0, num_blocks), false);
  REQUIRE(found.is_ok());
  std::size_t num_found = 0;
  for (const Tier tier : found.value().tiers) num_found += tier == Tier::kHost ? 1 : 0;
  return num_found;
}

std::uint32_t put_on_disk(StoreWorld& world, std::size_t num_blocks) {
  REQUIRE(world.open().is_ok());
  const std::uint32_t space = world.add_namespace(kBytes);
  REQUIRE(count_done(world.put(space, 0, num_blocks, kBytes)) == num_blocks);
  world.flush();
  REQUIRE(world.store->clear(true, false).is_ok());
  REQUIRE(num_in_host(world, space, num_blocks) == 0);
  return space;
}

}  // namespace

TEST_CASE("prefetched blocks are host hits with the right bytes") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    StoreWorld world(seed);
    const std::uint32_t space = put_on_disk(world, 50);
    // Twice, and with keys that nobody knows.
    REQUIRE(world.store->prefetch(space, keys_of(0, 60)).is_ok());
    REQUIRE(world.store->prefetch(space, keys_of(0, 60)).is_ok());
    run_for_ns(*world.executor, 2 * kNsPerS);
    CHECK(num_in_host(world, space, 50) == 50);
    const StoreStats before = world.store->stats();
    CHECK(before.jobs.prefetched_blocks == 50);
    CHECK(before.jobs.unfinished == 0);
    CHECK(before.jobs.prefetch_bytes_queued == 0);
    CHECK(world.store->poll_jobs().value().empty());
    CHECK(count_done(world.get(space, 0, 50, kBytes)) == 50);
    CHECK(world.store->stats().disk.bytes_read == before.disk.bytes_read);
    world.check_consistency();
  }
}

TEST_CASE("no more than a quarter of the host tier is queued for prefetch") {
  StoreWorld world;
  world.options.host_bytes = 4 << 20;
  const std::uint32_t space = put_on_disk(world, 900);
  world.disk->set_stalled(true);
  for (std::uint64_t i = 0; i < 9; ++i) {
    REQUIRE(world.store->prefetch(space, keys_of(i * 100, 100)).is_ok());
  }
  CHECK(world.store->stats().jobs.prefetch_bytes_queued == 1 << 20);
  world.disk->set_stalled(false);
  run_for_ns(*world.executor, 5 * kNsPerS);
  CHECK(num_in_host(world, space, 900) == 256);
  CHECK(world.store->stats().jobs.prefetch_bytes_queued == 0);
  world.check_consistency();
}

TEST_CASE("a get's reads go before those of a prefetch") {
  StoreWorld world;
  const std::uint32_t space = put_on_disk(world, 400);
  REQUIRE(world.store->prefetch(space, keys_of(0, 300)).is_ok());
  const std::uint64_t num_reads = world.disk->num_reads();
  const auto outcomes = world.get(space, 0, 400, kBytes, false);
  CHECK(count_done(outcomes) == 400);
  CHECK(world.store->stats().jobs.prefetched_blocks < 300);
  // Each block was read once, by the one or the other.
  CHECK(world.disk->num_reads() - num_reads == 400);
  run_for_ns(*world.executor, 2 * kNsPerS);
  CHECK(world.store->stats().jobs.unfinished == 0);
  world.check_consistency();
}

TEST_CASE("without a host tier, or without a disk tier, there is nothing to prefetch") {
  StoreWorld world;
  world.options.host_bytes = 0;
  REQUIRE(world.open().is_ok());
  const std::uint32_t space = world.add_namespace(kBytes);
  REQUIRE(count_done(world.put(space, 0, 10, kBytes)) == 10);
  REQUIRE(world.store->prefetch(space, keys_of(0, 10)).is_ok());
  CHECK(world.store->stats().jobs.prefetch_blocks == 0);
  StoreWorld host_alone;
  host_alone.options.path.clear();
  REQUIRE(host_alone.open().is_ok());
  REQUIRE(host_alone.store->prefetch(host_alone.add_namespace(kBytes), keys_of(0, 10)).is_ok());
  CHECK(host_alone.store->stats().jobs.prefetch_blocks == 0);
}

TEST_CASE("a prefetch of rotten blocks removes them and counts the failures") {
  StoreWorld world;
  const std::uint32_t space = put_on_disk(world, 20);
  world.disk->faults().read_flip = 1;
  REQUIRE(world.store->prefetch(space, keys_of(0, 20)).is_ok());
  run_for_ns(*world.executor, 2 * kNsPerS);
  world.disk->faults() = SimFaults{};
  const StoreStats stats = world.store->stats();
  CHECK(stats.jobs.prefetched_blocks == 0);
  CHECK(stats.disk.corrupt >= 1);
  CHECK(stats.disk.load_failures >= stats.disk.corrupt);
  CHECK(world.lookup(space, 0, 20) == 0);
  world.check_consistency();
}

TEST_CASE("a prefetch that waits for a silent disk ends with the store") {
  const WithoutLeakCheck without_leak_check;
  StoreWorld world;
  const std::uint32_t space = put_on_disk(world, 20);
  world.disk->set_stalled(true);
  REQUIRE(world.store->prefetch(space, keys_of(0, 20)).is_ok());
  run_for_ns(*world.executor, kNsPerMs);
  const TimeNs start_ns = world.clock->now_ns();
  (void)world.store->close(kNsPerS).is_ok();
  CHECK(world.clock->now_ns() - start_ns < 2 * kNsPerS);
}
