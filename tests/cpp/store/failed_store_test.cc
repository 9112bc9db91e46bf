// A store in which an invariant broke: what waits ends at once, what comes is a miss, close ends.
#include "base/check.h"
#include "job_calls.h"
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

/// Another engine, which breaks where it gives results back once it is told to.
class BreakingIoEngine final : public IoEngine {
 public:
  BreakingIoEngine(std::unique_ptr<IoEngine> engine, const bool& is_breaking)
      : engine_(std::move(engine)), is_breaking_(is_breaking) {}

 private:
  void do_submit(std::vector<IoOp> ops) override {
    REQUIRE(engine_->submit(std::move(ops)).is_ok());
  }
  std::size_t do_poll(std::vector<IoResult>& results) override {
    if (is_breaking_) throw InternalError("results of ops that nobody submitted");
    return engine_->poll(results);
  }
  void do_set_on_result(std::function<void()> on_result) override {
    engine_->set_on_result(std::move(on_result));
  }
  bool do_stop(TimeNs deadline_ns) override { return engine_->stop(deadline_ns); }
  IoEngineInfo do_info() const override { return engine_->info(); }

  std::unique_ptr<IoEngine> engine_;
  const bool& is_breaking_;
};

struct FailingWorld : StoreWorld {
  FailingWorld() {
    wrap_io_engine = [this](std::unique_ptr<IoEngine> engine) {
      return std::make_unique<BreakingIoEngine>(std::move(engine), is_breaking);
    };
    options.host_bytes = 0;
    REQUIRE(open().is_ok());
    space = add_namespace(16'000);
    put(space, 0, 10, 16'000);
    flush();
  }

  void fail() {
    is_breaking = true;
    disk->set_stalled(false);
    run_for_ns(*executor, 100 * kNsPerMs);
    REQUIRE(num_log_lines_with("the store is failed") == 1);
  }

  bool is_breaking = false;
  std::uint32_t space = 0;
};

}  // namespace

TEST_CASE("jobs that wait when the store fails end at once, with nothing delivered") {
  FailingWorld world;
  world.disk->set_stalled(true);
  const BlockRun stored{world.space, 0, 10, 16'000};
  const JobCall get = start_get(*world.store, stored, 30 * kNsPerS);
  const JobCall get_each = start_get(*world.store, stored, 30 * kNsPerS, false);
  const JobCall put = start_put(*world.store, {world.space, 100, 4, 16'000}, 30 * kNsPerS);
  run_for_ns(*world.executor, 100 * kNsPerMs);
  REQUIRE_FALSE(get.job->is_ended());
  REQUIRE_FALSE(put.job->is_ended());
  world.fail();
  CHECK(get.job->is_ended());
  CHECK(get_each.job->is_ended());
  CHECK(put.job->is_ended());
  CHECK(count_done(get.outcomes()) == 0);
  CHECK(count_done(get_each.outcomes()) == 0);
  CHECK(count_done(put.outcomes()) == 0);
}

TEST_CASE("a failed store answers misses, takes nothing, says so and closes") {
  FailingWorld world;
  world.disk->set_stalled(true);
  const JobCall get = start_get(*world.store, {world.space, 0, 1, 16'000}, 30 * kNsPerS);
  world.fail();
  const TimeNs start_ns = world.clock->now_ns();
  CHECK(world.lookup(world.space, 0, 10) == 0);
  CHECK(count_done(world.get(world.space, 0, 10, 16'000)) == 0);
  CHECK(count_done(world.put(world.space, 200, 3, 16'000)) == 0);
  const JobCall late = start_get(*world.store, {world.space, 0, 10, 16'000}, 30 * kNsPerS);
  run_for_ns(*world.executor, 100 * kNsPerMs);
  CHECK(late.job->is_ended());
  CHECK(count_done(late.outcomes()) == 0);
  CHECK(world.clock->now_ns() - start_ns <= kNsPerS);
  CHECK(world.store->stats().disk.health == Health::kOff);
  CHECK(world.store->stats().host.health == Health::kOff);
  (void)world.store->close(10 * kNsPerS).is_ok();
  CHECK(world.clock->now_ns() - start_ns <= 11 * kNsPerS);
  world.store.reset();
  // What was written before is there, right or not at all.
  world.is_breaking = false;
  REQUIRE(world.open().is_ok());
  world.space = world.add_namespace(16'000);
  CHECK(count_done(world.get(world.space, 0, 10, 16'000)) == 10);
  world.check_consistency();
}
