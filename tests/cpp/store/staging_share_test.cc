// Calls that share the staging: one alone takes most of it, and those that come then get on.
#include "job_calls.h"
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

constexpr std::uint64_t kMiB = 1ull << 20;

struct StagedWorld : StoreWorld {
  StagedWorld() {
    options.host_bytes = 0;
    options.staging_bytes = 4 * kMiB;
    options.disk_bytes = 256 * kMiB;
    REQUIRE(open().is_ok());
    quarters = add_namespace(kMiB);
    halves = add_namespace(2 * kMiB);
    REQUIRE(count_done(put(quarters, 0, 8, kMiB)) == 8);
    REQUIRE(count_done(put(halves, 100, 4, 2 * kMiB)) == 4);
    flush();
    REQUIRE(store->stats().staging_bytes_used == 0);
  }

  std::uint64_t used_bytes() const { return store->stats().staging_bytes_used; }
  void run() { run_for_ns(*executor, 100 * kNsPerMs); }
  void check_put(const JobCall& call) {
    REQUIRE(call.job->is_ended());
    CHECK(count_done(call.outcomes()) == call.buffers.size());
  }
  void check_get(const JobCall& call) {
    REQUIRE(call.job->is_ended());
    for (std::size_t i = 0; i < call.buffers.size(); ++i) {
      CHECK(call.outcomes()[i] == Outcome::kDone);
      CHECK(call.buffers[i] == payload_of(call.first + i, call.block_bytes));
    }
  }

  std::uint32_t quarters = 0;
  std::uint32_t halves = 0;
};

}  // namespace

TEST_CASE("a put alone fills three quarters of the staging, and a get of large blocks gets on") {
  StagedWorld world;
  world.disk->set_stalled(true);
  const JobCall put = start_put(*world.store, {world.quarters, 1000, 9, kMiB}, 30 * kNsPerS);
  world.run();
  CHECK(world.used_bytes() == 3 * kMiB);
  // Half of the staging is not free: it stands in line, and nobody passes it.
  const JobCall get = start_get(*world.store, {world.halves, 100, 4, 2 * kMiB}, 30 * kNsPerS);
  world.run();
  const JobCall late = start_get(*world.store, {world.quarters, 0, 8, kMiB}, 30 * kNsPerS);
  world.run();
  CHECK(world.used_bytes() == 3 * kMiB);
  world.disk->set_stalled(false);
  run_for_ns(*world.executor, kNsPerS);
  world.check_put(put);
  world.check_get(get);
  world.check_get(late);
  CHECK(world.used_bytes() == 0);
  world.check_consistency();
}

TEST_CASE("puts and gets of all sizes share the staging and all end, in any order") {
  for (std::uint64_t order = 0; order < 8; ++order) {
    CAPTURE(order);
    StagedWorld world;
    std::vector<JobCall> puts;
    std::vector<JobCall> gets;
    world.disk->set_stalled(order % 2 == 0);
    for (std::uint64_t turn = 0; turn < 4; ++turn) {
      switch ((turn * 5 + order) % 4) {
        case 0:
          puts.push_back(start_put(*world.store, {world.quarters, 1000, 7, kMiB}, 30 * kNsPerS));
          break;
        case 1:
          puts.push_back(start_put(*world.store, {world.halves, 2000, 5, 2 * kMiB}, 30 * kNsPerS));
          break;
        case 2:
          gets.push_back(start_get(*world.store, {world.quarters, 0, 8, kMiB}, 30 * kNsPerS));
          break;
        default:
          gets.push_back(start_get(*world.store, {world.halves, 100, 4, 2 * kMiB}, 30 * kNsPerS));
      }
      if (order >= 4) run_for_ns(*world.executor, static_cast<TimeNs>(order) * 100 * kNsPerUs);
      CHECK(world.used_bytes() <= world.options.staging_bytes);
    }
    world.run();
    world.disk->set_stalled(false);
    run_for_ns(*world.executor, kNsPerS);
    for (const JobCall& put : puts) world.check_put(put);
    for (const JobCall& get : gets) world.check_get(get);
    CHECK(world.used_bytes() == 0);
  }
}
