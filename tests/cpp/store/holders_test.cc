// Who holds what: leases with their owners, jobs under way, the oldest first.
#include "job_calls.h"
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

TEST_CASE("holders names leases by age, and forgets those that ended") {
  StoreWorld world;
  REQUIRE(world.open().is_ok());
  const std::uint32_t space = world.add_namespace(4096);
  REQUIRE(world.put(space, 0, 6, 4096) == std::vector(6, Outcome::kDone));
  CHECK(world.store->holders(8).empty());
  const auto keys = keys_of(0, 6);
  const TimeNs start_ns = world.clock->now_ns();
  const auto first = world.store->lease(space, std::span(keys).first(4), true, kNsPerS, "router");
  const auto second = world.store->lease(space, keys, true, 2 * kNsPerS);
  auto holders = world.store->holders(8);
  REQUIRE(holders.size() == 2);
  CHECK(holders[0].kind == std::string("lease"));
  CHECK(holders[0].owner == "router");
  CHECK(holders[0].id == first.value().lease_id);
  CHECK(holders[0].num_blocks == 4);
  CHECK(holders[0].num_bytes == 4 * 4096);
  CHECK(holders[0].since_ns >= start_ns);
  CHECK(holders[0].until_ns == holders[0].since_ns + kNsPerS);
  CHECK(holders[1].owner.empty());
  CHECK(holders[1].num_blocks == 6);
  CHECK(world.store->holders(1).size() == 1);
  CHECK(world.store->release(first.value().lease_id));
  holders = world.store->holders(8);
  REQUIRE(holders.size() == 1);
  CHECK(holders[0].id == second.value().lease_id);
  world.clock->advance_ns(3 * kNsPerS);
  CHECK(world.store->holders(8).empty());
}

TEST_CASE("a job stands among the holders until it has ended, and its time in the latencies") {
  StoreWorld world;
  world.options.host_bytes = 0;
  REQUIRE(world.open().is_ok());
  const std::uint32_t space = world.add_namespace(4096);
  JobCall call = start_put(*world.store, {space, 0, 3, 4096}, 10 * kNsPerS);
  REQUIRE(call.job);
  const auto holders = world.store->holders(8);
  REQUIRE(holders.size() == 1);
  CHECK(holders[0].kind == std::string("put"));
  CHECK(holders[0].num_blocks == 3);
  CHECK(holders[0].num_bytes == 3 * 4096);
  CHECK(world.store->stats().put_latency.calls == 0);
  REQUIRE(world.store->wait_job(*call.job, 10 * kNsPerS).is_ok());
  CHECK(world.store->holders(8).empty());
  CHECK(world.store->stats().put_latency.calls == 1);
  CHECK(world.get(space, 0, 3, 4096) == std::vector(3, Outcome::kDone));
  const StoreStats stats = world.store->stats();
  CHECK(stats.get_latency.calls == 1);
  CHECK(stats.get_latency.total_ns > 0);
  CHECK(stats.load_latency.calls == 0);
}
