// The threads engine on real files: the contract, many pieces, priorities, and stopping while the
// kernel holds an op.
#include "io/threads_io_engine.h"

#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "io/posix_io_world.h"

namespace kvtier::testing {
namespace {

/// A gate that threads wait at; shared with threads that a stopped engine left behind.
class Gate {
 public:
  void open() {
    std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++num_arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
    ++num_passed_;
    changed_.notify_all();
  }
  bool wait_arrived(int num_arrived) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return num_arrived_ >= num_arrived; });
  }
  bool wait_passed(int num_passed) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return num_passed_ >= num_passed; });
  }
  int num_arrived() {
    std::lock_guard<std::mutex> lock(mutex_);
    return num_arrived_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  int num_arrived_ = 0;
  int num_passed_ = 0;
};

class ThreadsIoWorld final : public PosixIoWorld {
 public:
  explicit ThreadsIoWorld(std::uint32_t num_threads = 4, SystemCalls calls = real_system_calls())
      : PosixIoWorld([&](Clock& clock) {
          return make_threads_io_engine(clock, ThreadsIoOptions{num_threads}, std::move(calls));
        }) {}
};

SystemCalls gated_reads(const std::shared_ptr<Gate>& gate) {
  SystemCalls calls = real_system_calls();
  calls.preadv = [gate](int, const iovec* pieces, int num_pieces, off_t) {
    gate->pass();
    ssize_t total_bytes = 0;
    for (int index = 0; index < num_pieces; ++index) {
      total_bytes += static_cast<ssize_t>(pieces[index].iov_len);
    }
    return total_bytes;
  };
  return calls;
}

IoOp gated_read(std::span<std::byte> target, IoPriority priority, std::uint64_t user_data) {
  IoOp op = transfer_op(IoKind::kRead, 0, 0, {target});
  op.priority = priority;
  op.user_data = user_data;
  return op;
}

TEST_CASE("the threads engine keeps the contract") {
  check_io_engine_conformance([] { return std::make_unique<ThreadsIoWorld>(); });
}

TEST_CASE("the threads engine keeps the contract with a single thread") {
  check_io_engine_conformance([] { return std::make_unique<ThreadsIoWorld>(1); });
}

TEST_CASE("E9: an op of 1500 pieces goes through a real file") {
  ThreadsIoWorld world;
  constexpr std::size_t kNumPieces = 1500;
  constexpr std::size_t kPieceBytes = 1000;
  std::vector<std::byte> source = make_payload({7, 0}, kNumPieces * kPieceBytes);
  std::vector<std::byte> target(source.size());
  const auto pieces_of = [](std::span<std::byte> bytes) {
    std::vector<std::span<std::byte>> pieces;
    for (std::size_t index = 0; index < kNumPieces; ++index) {
      pieces.push_back(bytes.subspan(index * kPieceBytes, kPieceBytes));
    }
    return pieces;
  };
  const int fd = world.open("pieces");
  CHECK(world.run(transfer_op(IoKind::kWrite, fd, 0, pieces_of(source))).status.is_ok());
  CHECK(world.run(transfer_op(IoKind::kRead, fd, 0, pieces_of(target))).status.is_ok());
  CHECK(are_equal(source, target));
}

TEST_CASE("E7: interrupted and shortened calls do not show in the bytes of a real file") {
  // As a signal on every 10th call and a device that stops on sectors now and then.
  auto num_calls = std::make_shared<std::atomic<std::uint64_t>>(0);
  SystemCalls calls = real_system_calls();
  const auto disturbed = [num_calls](const auto& call) {
    return [num_calls, call](int fd, const iovec* pieces, int num_pieces, off_t offset_bytes) {
      const std::uint64_t number = num_calls->fetch_add(1);
      if (number % 10 == 9 || number % 7 == 5) {
        errno = number % 10 == 9 ? EINTR : EAGAIN;
        return static_cast<ssize_t>(-1);
      }
      if (number % 3 != 0 || pieces[0].iov_len < 4096)
        return call(fd, pieces, num_pieces, offset_bytes);
      const iovec part = {pieces[0].iov_base, pieces[0].iov_len / 2 / 512 * 512};
      return call(fd, &part, 1, offset_bytes);
    };
  };
  calls.preadv = disturbed(real_system_calls().preadv);
  calls.pwritev = disturbed(real_system_calls().pwritev);
  calls.pause = [](TimeNs) {};
  ThreadsIoWorld world(4, calls);
  for (const bool is_direct : {false, true}) {
    CAPTURE(is_direct);
    Result<int> opened =
        world.directory().open_file("data", {.is_created = true, .is_direct = is_direct});
    if (!opened.is_ok()) continue;
    constexpr std::size_t kNumOps = 40;
    constexpr std::size_t kOpBytes = 12 * 4096;
    AlignedBytes source(kNumOps * kOpBytes);
    AlignedBytes target(kNumOps * kOpBytes);
    fill_payload({10, is_direct ? 1u : 0u}, 0, source.span());
    for (const IoKind kind : {IoKind::kWrite, IoKind::kRead}) {
      std::vector<IoOp> ops;
      for (std::size_t index = 0; index < kNumOps; ++index) {
        const auto bytes = (kind == IoKind::kWrite ? source : target).span();
        // With gaps, or neighbours would become one call.
        ops.push_back(transfer_op(kind, opened.value(), 2 * index * kOpBytes,
                                  {bytes.subspan(index * kOpBytes, 4 * 4096),
                                   bytes.subspan(index * kOpBytes + 4 * 4096, 8 * 4096)}));
      }
      REQUIRE(world.engine().submit(std::move(ops)).is_ok());
      const std::vector<IoResult> results = world.wait_for(kNumOps);
      CHECK(results.size() == kNumOps);
      for (const IoResult& result : results)
        CHECK_MESSAGE(result.status.is_ok(), result.status.to_string());
    }
    CHECK(are_equal(source.span(), target.span()));
  }
  CHECK(num_calls->load() > 200);
}

TEST_CASE("waiting ops start by priority and then in order") {
  std::vector<std::byte> bytes(8);
  auto gate = std::make_shared<Gate>();
  ThreadsIoWorld world(1, gated_reads(gate));
  REQUIRE(world.engine().submit({gated_read(bytes, IoPriority::kSave, 0)}).is_ok());
  REQUIRE(gate->wait_arrived(1));
  REQUIRE(
      world.engine()
          .submit(
              {gated_read(bytes, IoPriority::kSave, 5), gated_read(bytes, IoPriority::kControl, 3),
               gated_read(bytes, IoPriority::kSave, 6), gated_read(bytes, IoPriority::kLoad, 1),
               gated_read(bytes, IoPriority::kControl, 4), gated_read(bytes, IoPriority::kLoad, 2)})
          .is_ok());
  gate->open();
  std::vector<std::uint64_t> order;
  for (const IoResult& result : world.wait_for(7)) order.push_back(result.user_data);
  CHECK(order == std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5, 6});
}

TEST_CASE("stuck saves and controls leave a thread for loads") {
  std::vector<std::byte> bytes(8);
  auto gate = std::make_shared<Gate>();
  ThreadsIoWorld world(4, gated_reads(gate));
  const int fd = world.open("data");
  std::vector<IoOp> stuck;
  for (std::uint64_t index = 0; index < 20; ++index) {
    stuck.push_back(
        gated_read(bytes, index % 2 == 0 ? IoPriority::kSave : IoPriority::kControl, index));
  }
  REQUIRE(world.engine().submit(std::move(stuck)).is_ok());
  REQUIRE(gate->wait_arrived(3));
  // A load that does not meet the gate.
  IoOp load = transfer_op(IoKind::kSync, fd, 0, {});
  load.priority = IoPriority::kLoad;
  load.user_data = 77;
  REQUIRE(world.engine().submit({std::move(load)}).is_ok());
  const std::vector<IoResult> results = world.wait_for(1);
  REQUIRE(results.size() == 1);
  CHECK(results.front().user_data == 77);
  CHECK(gate->num_arrived() == 3);
  gate->open();
  CHECK(world.wait_for(20).size() == 20);
}

TEST_CASE("the numbers of threads for background work") {
  CHECK(choose_num_io_threads(0) == 2);
  CHECK(choose_num_io_threads(1) == 2);
  CHECK(choose_num_io_threads(2) == 8);
  CHECK(choose_num_io_threads(64) == 8);
  CHECK(num_save_threads_max(1) == 1);
  CHECK(num_save_threads_max(2) == 1);
  CHECK(num_save_threads_max(4) == 3);
  CHECK(num_save_threads_max(8) == 6);
  CHECK(num_save_threads_max(64) == 48);
  CHECK(num_background_threads_max(1) == 1);
  CHECK(num_background_threads_max(8) == 7);
}

TEST_CASE("stopping with a stuck op returns at its deadline and destruction does not hang") {
  auto bytes = std::make_shared<std::vector<std::byte>>(8);
  auto gate = std::make_shared<Gate>();
  ThreadsIoWorld world(2, gated_reads(gate));
  REQUIRE(world.engine()
              .submit({gated_read(*bytes, IoPriority::kLoad, 1),
                       gated_read(*bytes, IoPriority::kLoad, 2),
                       gated_read(*bytes, IoPriority::kLoad, 3)})
              .is_ok());
  REQUIRE(gate->wait_arrived(2));
  const TimeNs start_ns = world.now_ns();
  CHECK_FALSE(world.engine().stop(start_ns + 20 * kNsPerMs));
  CHECK(world.now_ns() - start_ns >= 20 * kNsPerMs);
  CHECK(world.now_ns() - start_ns < 20 * kNsPerS);
  std::vector<IoResult> results;
  CHECK(world.engine().poll(results) == 1);
  CHECK(results.front().status.code() == StatusCode::kCancelled);
  CHECK(world.engine().num_in_flight() == 2);
  const int num_calls = world.num_calls();
  SUBCASE("the engine goes first") { world.destroy_engine(); }
  SUBCASE("the op ends first") {}
  gate->open();
  CHECK(gate->wait_passed(2));
  // Nobody is called for ops that end after the engine gave up.
  CHECK(world.num_calls() == num_calls);
}

TEST_CASE("an engine that is destroyed without a stop ends its ops") {
  ThreadsIoWorld world;
  const int fd = world.open("data");
  std::vector<std::byte> bytes = make_payload({8, 0}, 4096);
  std::vector<IoOp> ops(50, transfer_op(IoKind::kWrite, fd, 0, {bytes}));
  REQUIRE(world.engine().submit(std::move(ops)).is_ok());
  world.destroy_engine();
}

TEST_CASE("many threads submit and poll at once and each op ends once") {
  ThreadsIoWorld world;
  const int fd = world.open("data");
  std::vector<std::byte> bytes = make_payload({9, 0}, 4096);
  REQUIRE(world.run(transfer_op(IoKind::kWrite, fd, 0, {bytes})).status.is_ok());
  constexpr std::size_t kNumThreads = 4;
  constexpr std::size_t kNumOps = 200;
  std::vector<std::vector<std::byte>> targets(kNumThreads * kNumOps, std::vector<std::byte>(64));
  std::atomic<std::size_t> num_polled{0};
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < kNumThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::vector<IoResult> results;
      for (std::size_t index = 0; index < kNumOps; ++index) {
        auto& target = targets[thread * kNumOps + index];
        static_cast<void>(world.engine().submit({transfer_op(IoKind::kRead, fd, 64, {target})}));
        num_polled += world.engine().poll(results);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::size_t num_left = kNumThreads * kNumOps - num_polled;
  CHECK(world.wait_for(num_left).size() == num_left);
  for (const auto& target : targets) CHECK(are_equal(target, std::span(bytes).subspan(64, 64)));
}

}  // namespace
}  // namespace kvtier::testing
