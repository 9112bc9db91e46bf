// The throttled engine on real files: the contract with and without limits, and times that a limit
// asks for.
#include "io/throttled_io_engine.h"

#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "io/io_engine_conformance.h"
#include "testing/temporary_folder.h"

namespace kvtier::testing {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

class ThrottledIoWorld final : public IoEngineWorld {
 public:
  explicit ThrottledIoWorld(const ThrottleOptions& options) {
    Result<std::unique_ptr<Directory>> opened = open_posix_directory(folder_.path());
    REQUIRE_MESSAGE(opened.is_ok(), opened.status().to_string());
    directory_ = std::move(opened).value();
    engine_ = make_throttled_io_engine(make_threads_io_engine(clock_, {.num_threads = 4}), clock_,
                                       options);
    engine_->set_on_result([this] {
      std::lock_guard<std::mutex> lock(mutex_);
      ++num_calls_;
      changed_.notify_all();
    });
  }

  ~ThrottledIoWorld() override { engine_.reset(); }

  Directory& directory() override { return *directory_; }
  IoEngine& engine() override { return *engine_; }
  TimeNs now_ns() override { return clock_.now_ns(); }
  bool is_alignment_checked() override { return folder_.is_on_disk(); }
  bool let_time_pass() override {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool is_called =
        changed_.wait_for(lock, kPatience, [this] { return num_calls_ > num_seen_; });
    num_seen_ = num_calls_;
    return is_called;
  }
  void destroy_engine() { engine_.reset(); }

 private:
  TemporaryFolder folder_;
  SystemClock clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_calls_ = 0;
  int num_seen_ = 0;
  std::unique_ptr<Directory> directory_;
  std::unique_ptr<IoEngine> engine_;
};

TEST_CASE("the throttled engine without limits keeps the contract") {
  check_io_engine_conformance([] { return std::make_unique<ThrottledIoWorld>(ThrottleOptions{}); });
}

TEST_CASE("the throttled engine with one place and a latency keeps the contract") {
  check_io_engine_conformance([] {
    return std::make_unique<ThrottledIoWorld>(ThrottleOptions{.read_bytes_per_s = 1'000'000'000,
                                                              .write_bytes_per_s = 1'000'000'000,
                                                              .latency_ns = 20 * kNsPerUs,
                                                              .queue_depth_max = 1});
  });
}

TEST_CASE("ops through the throttled engine take at least what the disk on paper takes") {
  ThrottledIoWorld world({.write_bytes_per_s = 10'000'000, .latency_ns = 30 * kNsPerMs});
  const int fd = world.open("slow");
  std::vector<std::byte> source = make_payload({1, 0}, 50'000);
  const TimeNs started_ns = world.now_ns();
  std::vector<IoOp> ops;
  for (std::uint64_t index = 0; index < 10; ++index) {
    ops.push_back(transfer_op(IoKind::kWrite, fd, index * source.size(), {source}));
  }
  REQUIRE(world.engine().submit(std::move(ops)).is_ok());
  CHECK(world.wait_for(10).size() == 10);
  CHECK(world.now_ns() - started_ns >= 80 * kNsPerMs);
  CHECK(world.engine().info().name == "threads, throttled");
}

TEST_CASE("stopping does not wait for the disk on paper") {
  ThrottledIoWorld world({.latency_ns = 3'600 * kNsPerS, .queue_depth_max = 2});
  const int fd = world.open("never");
  std::vector<std::byte> source = make_payload({1, 0}, 4096);
  std::vector<IoOp> ops(5, transfer_op(IoKind::kWrite, fd, 0, {source}));
  REQUIRE(world.engine().submit(std::move(ops)).is_ok());
  std::vector<IoResult> results;
  CHECK(world.engine().poll(results) == 0);
  CHECK(world.engine().stop(world.now_ns() + 30 * kNsPerS));
  CHECK(world.engine().poll(results) == 5);
  CHECK(world.engine().num_in_flight() == 0);
}

TEST_CASE("a throttled engine that is destroyed while ops wait ends") {
  ThrottledIoWorld world({.latency_ns = 3'600 * kNsPerS, .queue_depth_max = 1});
  const int fd = world.open("dropped");
  std::vector<std::byte> source = make_payload({1, 0}, 4096);
  std::vector<IoOp> ops(5, transfer_op(IoKind::kWrite, fd, 0, {source}));
  REQUIRE(world.engine().submit(std::move(ops)).is_ok());
  world.destroy_engine();
}

}  // namespace
}  // namespace kvtier::testing
