// The simulated engine keeps the contract of IoEngine, and what only a simulation can show.
#include <doctest/doctest.h>

#include "io/io_engine_conformance.h"
#include "testing/sim_world.h"

namespace kvtier::testing {
namespace {

class SimIoWorld final : public IoEngineWorld {
 public:
  explicit SimIoWorld(const SimOptions& options = {})
      : disk(clock, options), directory_(disk.make_directory()), engine_(disk.make_io_engine()) {}

  Directory& directory() override { return *directory_; }
  IoEngine& engine() override { return *engine_; }
  TimeNs now_ns() override { return clock.now_ns(); }
  bool is_alignment_checked() override { return true; }
  bool let_time_pass() override {
    const TimeNs next_ns = disk.next_event_ns();
    if (next_ns >= kNeverNs) return false;
    clock.advance_to(next_ns);
    disk.run_due();
    return true;
  }

  SimClock clock;
  SimDisk disk;

 private:
  std::unique_ptr<Directory> directory_;
  std::unique_ptr<IoEngine> engine_;
};

TEST_CASE("the simulated engine keeps the contract") {
  check_io_engine_conformance([] { return std::make_unique<SimIoWorld>(); });
}

TEST_CASE("loads overtake waiting saves in the simulation") {
  SimOptions options;
  options.queue_depth = 1;
  SimIoWorld world(options);
  const int fd = world.open("data");
  std::vector<std::byte> bytes = make_payload({1, 0}, 512);
  std::vector<IoOp> ops;
  for (const IoPriority priority :
       {IoPriority::kSave, IoPriority::kSave, IoPriority::kControl, IoPriority::kLoad}) {
    IoOp op = transfer_op(IoKind::kWrite, fd, 0, {bytes});
    op.priority = priority;
    op.user_data = static_cast<std::uint64_t>(priority);
    ops.push_back(std::move(op));
  }
  REQUIRE(world.engine().submit(std::move(ops)).is_ok());
  std::vector<std::uint64_t> order;
  for (const IoResult& result : world.wait_for(4)) order.push_back(result.user_data);
  CHECK(order == std::vector<std::uint64_t>{0, 1, 2, 2});
}

TEST_CASE("a stalled disk completes nothing and a stop ends at its deadline") {
  SimIoWorld world;
  const int fd = world.open("data");
  std::vector<std::byte> bytes = make_payload({1, 0}, 512);
  REQUIRE(world.engine().submit({transfer_op(IoKind::kWrite, fd, 0, {bytes})}).is_ok());
  world.disk.set_stalled(true);
  CHECK(world.disk.next_event_ns() == kNeverNs);
  CHECK(world.wait_for(1).empty());
  CHECK(world.directory().sync_file(fd).os_errno() == ETIMEDOUT);
  CHECK(world.directory().list_files().status().os_errno() == ETIMEDOUT);
  const TimeNs deadline_ns = world.now_ns() + kNsPerS;
  CHECK_FALSE(world.engine().stop(deadline_ns));
  CHECK(world.now_ns() == deadline_ns);
  CHECK(world.engine().num_in_flight() == 1);
  world.disk.set_stalled(false);
  const std::vector<IoResult> results = world.wait_for(1);
  REQUIRE(results.size() == 1);
  CHECK(results.front().status.is_ok());
  CHECK(world.engine().stop(deadline_ns));
}

TEST_CASE("ops of a crashed machine never complete and new ones answer that it is closed") {
  SimIoWorld world;
  const int fd = world.open("data");
  std::vector<std::byte> bytes = make_payload({1, 0}, 512);
  REQUIRE(world.engine().submit({transfer_op(IoKind::kWrite, fd, 0, {bytes})}).is_ok());
  world.disk.crash(true);
  CHECK(world.wait_for(1).empty());
  CHECK(world.engine().num_in_flight() == 1);
  REQUIRE(world.engine().submit({transfer_op(IoKind::kWrite, fd, 0, {bytes})}).is_ok());
  const std::vector<IoResult> results = world.wait_for(1);
  REQUIRE(results.size() == 1);
  CHECK(results.front().status.code() == StatusCode::kClosed);
  CHECK(world.engine().stop(world.now_ns() + kNsPerS));
}

TEST_CASE("an op takes its latency and its share of the bandwidth") {
  SimOptions options;
  options.latency_min_ns = options.latency_max_ns = kNsPerMs;
  options.bytes_per_s = 1e6;
  SimIoWorld world(options);
  const int fd = world.open("data");
  std::vector<std::byte> bytes = make_payload({1, 0}, 10'000);
  const TimeNs start_ns = world.now_ns();
  std::vector<IoOp> ops(2, transfer_op(IoKind::kWrite, fd, 0, {bytes}));
  REQUIRE(world.engine().submit(std::move(ops)).is_ok());
  CHECK(world.wait_for(2).size() == 2);
  CHECK(world.now_ns() - start_ns == 2 * 10 * kNsPerMs + kNsPerMs);
}

}  // namespace
}  // namespace kvtier::testing
