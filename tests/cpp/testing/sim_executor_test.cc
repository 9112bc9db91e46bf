// The simulated executor: the waiting caller runs the pump, the disk and the clock.
#include <doctest/doctest.h>

#include <vector>

#include "testing/payload.h"
#include "testing/sim_world.h"

namespace kvtier::testing {
namespace {

struct World {
  SimClock clock;
  SimDisk disk{clock, {}};
  std::unique_ptr<Executor> executor = make_sim_executor(clock, disk);
  std::mutex mutex;

  bool wait(const std::function<bool()>& is_done, TimeNs deadline_ns) {
    std::unique_lock<std::mutex> lock(mutex);
    return executor->wait(lock, is_done, deadline_ns);
  }
};

TEST_CASE("the pump runs at its own times and when woken") {
  World world;
  std::vector<TimeNs> runs;
  const TimeNs start_ns = world.clock.now_ns();
  world.executor->start([&] {
    runs.push_back(world.clock.now_ns() - start_ns);
    return world.clock.now_ns() + 100;
  });
  CHECK(runs.empty());
  CHECK(world.wait([&] { return runs.size() == 3; }, start_ns + 1000));
  CHECK(runs == std::vector<TimeNs>{0, 100, 200});
  world.clock.advance_ns(50);
  world.executor->wake();
  world.executor->wake();
  CHECK(world.wait([&] { return runs.size() == 4; }, start_ns + 1000));
  CHECK(runs.back() == 250);
  run_for_ns(*world.executor, 225);
  CHECK(runs == std::vector<TimeNs>{0, 100, 200, 250, 350, 450});
  CHECK(world.clock.now_ns() - start_ns == 475);
  world.executor->stop();
  run_for_ns(*world.executor, 1000);
  CHECK(runs.size() == 6);
}

TEST_CASE("a wait ends at its deadline and not before") {
  World world;
  const TimeNs start_ns = world.clock.now_ns();
  world.executor->start([] { return kNeverNs; });
  CHECK_FALSE(world.wait([] { return false; }, start_ns + 777));
  CHECK(world.clock.now_ns() == start_ns + 777);
  bool is_run = false;
  World other;
  other.executor->start([&] {
    is_run = true;
    return kNeverNs;
  });
  // A deadline in the past lets no time pass, yet what is due now is done.
  CHECK(other.wait([&] { return is_run; }, 0));
}

TEST_CASE("a wait completes ops of the disk and runs the pump that their results wake") {
  World world;
  const std::unique_ptr<Directory> directory = world.disk.make_directory();
  const std::unique_ptr<IoEngine> engine = world.disk.make_io_engine();
  engine->set_on_result([&] { world.executor->wake(); });
  std::size_t num_results = 0;
  world.executor->start([&] {
    std::vector<IoResult> results;
    num_results += engine->poll(results);
    return kNeverNs;
  });
  std::vector<std::byte> bytes = make_payload({1, 0}, 512);
  IoOp op;
  op.kind = IoKind::kWrite;
  op.fd = directory->open_file("a", {.is_created = true}).value();
  op.pieces = {bytes};
  REQUIRE(engine->submit({op, op, op}).is_ok());
  CHECK(world.wait([&] { return num_results == 3; }, kNeverNs));
  REQUIRE(engine->submit({op, op}).is_ok());
  CHECK(run_until_idle(*world.executor));
  CHECK(num_results == 5);
  CHECK(engine->num_in_flight() == 0);
  REQUIRE(engine->submit({op}).is_ok());
  CHECK_FALSE(run_until_idle(*world.executor, 1));
  // The buffer belongs to the op until it ended.
  CHECK(run_until_idle(*world.executor));
}

#ifndef KVTIER_ABORT_ON_CHECK
TEST_CASE("a wait for what can never happen fails instead of hanging") {
  World world;
  world.executor->start([] { return kNeverNs; });
  CHECK_THROWS_AS(world.wait([] { return false; }, kNeverNs), InternalError);
  World spinning;
  spinning.executor->start([&] { return spinning.clock.now_ns(); });
  CHECK_THROWS_AS(spinning.wait([] { return false; }, kNeverNs), InternalError);
}
#endif

}  // namespace
}  // namespace kvtier::testing
