// The ring engine on real files: the contract, long and many-piece ops, neighbours joined,
// completions that fail or end short, and memory that is registered.
#include "io/uring_io_engine.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <thread>
#include <utility>

#include "io/posix_io_world.h"
#include "memory/arena.h"

namespace kvtier::testing {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

/// False where this machine refuses a ring; the threads engine's tests cover such machines.
bool has_ring() {
  SystemClock clock;
  const auto made = make_uring_io_engine(clock, {});
  if (!made.is_ok()) MESSAGE("skipped: ", made.status().to_string());
  return made.is_ok();
}

class UringIoWorld final : public PosixIoWorld {
 public:
  explicit UringIoWorld(UringIoOptions options = {}, std::span<std::byte> memory = {})
      : PosixIoWorld([&](Clock& clock) {
          auto made = make_uring_io_engine(clock, std::move(options));
          REQUIRE_MESSAGE(made.is_ok(), made.status().to_string());
          made.value()->register_memory(memory);
          return std::move(made).value();
        }) {}
};

UringIoOptions with_completions(std::function<std::int32_t(std::int32_t)> on_completion) {
  UringIoOptions options;
  options.on_completion = std::move(on_completion);
  return options;
}

/// Writes blocks, reads them back with both engine paths busy, and compares every byte.
void check_round_trip(UringIoWorld& world, bool is_direct, std::span<std::byte> source,
                      std::span<std::byte> target, std::size_t op_bytes) {
  Result<int> opened =
      world.directory().open_file("round", {.is_created = true, .is_direct = is_direct});
  if (!opened.is_ok()) return;
  fill_payload({21, op_bytes}, 0, source);
  for (const IoKind kind : {IoKind::kWrite, IoKind::kRead}) {
    std::vector<IoOp> ops;
    const auto bytes = kind == IoKind::kWrite ? source : target;
    for (std::size_t offset = 0; offset < bytes.size(); offset += op_bytes) {
      ops.push_back(transfer_op(kind, opened.value(), offset, {bytes.subspan(offset, op_bytes)}));
    }
    const std::size_t num_ops = ops.size();
    REQUIRE(world.engine().submit(std::move(ops)).is_ok());
    const std::vector<IoResult> results = world.wait_for(num_ops);
    CHECK(results.size() == num_ops);
    for (const IoResult& result : results) {
      CHECK_MESSAGE(result.status.is_ok(), result.status.to_string());
      CHECK(result.transferred_bytes == op_bytes);
    }
  }
  CHECK(are_equal(source, target));
  world.directory().close_file(opened.value());
}

TEST_CASE("the ring engine keeps the contract") {
  if (!has_ring()) return;
  check_io_engine_conformance([] { return std::make_unique<UringIoWorld>(); });
}

TEST_CASE("the ring engine keeps the contract with room for a single chunk") {
  if (!has_ring()) return;
  check_io_engine_conformance([] {
    UringIoOptions options;
    options.queue_depth = 1;
    options.num_threads = 1;
    return std::make_unique<UringIoWorld>(std::move(options));
  });
}

TEST_CASE("ops longer than a chunk and ops that are neighbours come back whole") {
  if (!has_ring()) return;
  AlignedBytes source(12 * kMiB);
  AlignedBytes target(12 * kMiB);
  for (const bool is_direct : {false, true}) {
    for (const std::size_t op_bytes :
         {std::size_t{4096}, std::size_t{65536}, std::size_t{3 * kMiB}, std::size_t{12 * kMiB}}) {
      CAPTURE(is_direct);
      CAPTURE(op_bytes);
      UringIoWorld world;
      check_round_trip(world, is_direct, source.span(), target.span(), op_bytes);
    }
  }
}

TEST_CASE("an op of 3000 pieces at an odd offset goes through the ring") {
  if (!has_ring()) return;
  UringIoWorld world;
  std::vector<std::byte> source = make_payload({22, 0}, 3000 * 1000);
  std::vector<std::byte> target(source.size());
  const auto pieces_of = [](std::span<std::byte> bytes) {
    std::vector<std::span<std::byte>> pieces;
    // Every other piece only, so that no two are neighbours in memory.
    for (std::size_t i = 0; i < 3000; ++i) pieces.push_back(bytes.subspan(i * 1000, 999));
    return pieces;
  };
  const int fd = world.open("pieces");
  REQUIRE(world.run(transfer_op(IoKind::kWrite, fd, 777, pieces_of(source))).status.is_ok());
  REQUIRE(world.run(transfer_op(IoKind::kRead, fd, 777, pieces_of(target))).status.is_ok());
  for (std::size_t i = 0; i < 3000; ++i) {
    REQUIRE(are_equal(std::span(source).subspan(i * 1000, 999),
                      std::span(target).subspan(i * 1000, 999)));
  }
}

TEST_CASE("completions that end short or fail are made good by the threads") {
  if (!has_ring()) return;
  auto num_completions = std::make_shared<std::atomic<std::uint32_t>>(0);
  UringIoWorld world(with_completions([num_completions](std::int32_t result) -> std::int32_t {
    switch (num_completions->fetch_add(1) % 6) {
      case 1:
        return result > 4096 ? 4096 : 0;
      case 3:
        return -EIO;
      case 4:
        return -EINTR;
      case 5:
        return -EAGAIN;
      default:
        return result;
    }
  }));
  AlignedBytes source(8 * kMiB);
  AlignedBytes target(8 * kMiB);
  for (const bool is_direct : {false, true}) {
    for (const std::size_t op_bytes : {std::size_t{16384}, std::size_t{2 * kMiB}}) {
      check_round_trip(world, is_direct, source.span(), target.span(), op_bytes);
    }
  }
  CHECK(num_completions->load() > 20);
}

TEST_CASE("E13: a ring that refuses every op is left alone after a few") {
  if (!has_ring()) return;
  auto num_completions = std::make_shared<std::atomic<std::uint32_t>>(0);
  UringIoWorld world(with_completions([num_completions](std::int32_t) -> std::int32_t {
    num_completions->fetch_add(1);
    return -EINVAL;
  }));
  AlignedBytes source(64 * 4096);
  AlignedBytes target(64 * 4096);
  // One at a time, so that none was in the ring already when it was given up.
  const int fd = world.open("refused");
  fill_payload({23, 0}, 0, source.span());
  for (std::size_t i = 0; i < 64; ++i) {
    const auto bytes = source.span().subspan(i * 4096, 4096);
    REQUIRE(world.run(transfer_op(IoKind::kWrite, fd, i * 4096, {bytes})).status.is_ok());
  }
  CHECK(num_completions->load() == 8);
  CHECK(world.engine().info().note.find("errno=22") != std::string::npos);
  REQUIRE(world.run(transfer_op(IoKind::kRead, fd, 0, {target.span()})).status.is_ok());
  CHECK(are_equal(source.span(), target.span()));
}

TEST_CASE("transfers into registered memory, over the borders of its pieces") {
  if (!has_ring()) return;
  // Two pieces and a bit: the last ops lie across a border or in the short piece.
  auto arena = Arena::create(36 * kMiB);
  REQUIRE(arena.is_ok());
  const auto memory = arena.value()->bytes(0, 36 * kMiB);
  UringIoWorld world({}, memory);
  for (const std::size_t op_bytes : {std::size_t{65536}, std::size_t{3 * kMiB}}) {
    check_round_trip(world, true, memory.first(18 * kMiB), memory.subspan(18 * kMiB), op_bytes);
  }
  CHECK(world.engine().info().note.empty());
  CHECK(world.engine().stop(world.now_ns() + 10 * kNsPerS));
}

TEST_CASE("loads overtake saves that wait") {
  if (!has_ring()) return;
  UringIoOptions options;
  options.queue_depth = 2;
  UringIoWorld world(std::move(options));
  const int fd = world.open("busy");
  AlignedBytes source(32 * kMiB);
  fill_payload({24, 0}, 0, source.span());
  AlignedBytes target(4096);
  REQUIRE(
      world.run(transfer_op(IoKind::kWrite, fd, 0, {source.span().first(4096)})).status.is_ok());
  std::vector<IoOp> ops;
  for (std::uint64_t i = 0; i < 8; ++i) {
    // Not neighbours: each is a transfer of its own.
    const auto bytes = source.span().subspan(i * 4 * kMiB, 4 * kMiB);
    ops.push_back(transfer_op(IoKind::kWrite, fd, (2 * i + 1) * 4 * kMiB, {bytes}));
    ops.back().user_data = i;
  }
  IoOp load = transfer_op(IoKind::kRead, fd, 0, {target.span()});
  load.user_data = 100;
  ops.push_back(std::move(load));
  REQUIRE(world.engine().submit(std::move(ops)).is_ok());
  std::vector<IoResult> results = world.wait_for(9);
  REQUIRE(results.size() == 9);
  const auto position = std::find_if(results.begin(), results.end(),
                                     [](const auto& r) { return r.user_data == 100; });
  // Submitted last, and behind 32 chunks: it may wait for those that had begun, not for all.
  CHECK(position - results.begin() < 4);
  CHECK(are_equal(source.span().first(4096), target.span()));
}

TEST_CASE("the ring engine is stopped, destroyed and fed by many threads at once") {
  if (!has_ring()) return;
  UringIoWorld world;
  const int fd = world.open("data");
  std::vector<std::byte> bytes = make_payload({25, 0}, 4096);
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
  std::vector<IoOp> ops(50, transfer_op(IoKind::kWrite, fd, 0, {bytes}));
  REQUIRE(world.engine().submit(std::move(ops)).is_ok());
  world.destroy_engine();
}

void check_last_op_behind_wake_up() {
  UringIoOptions options;
  options.queue_depth = 1;
  UringIoWorld world(std::move(options));
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const std::vector<std::byte> source = make_payload({26, 0}, 4096);
  std::vector<std::byte> target(source.size());
  // Called first by stop(), for the op that waits, when it has sent its wake-up.
  world.engine().set_on_result([&, is_first = true]() mutable {
    if (!std::exchange(is_first, false)) return;
    CHECK(::write(ends[1], source.data(), source.size()) == static_cast<ssize_t>(source.size()));
  });
  const int fd = world.open("data");
  REQUIRE(world.engine()
              .submit({transfer_op(IoKind::kRead, ends[0], 0, {target}),
                       transfer_op(IoKind::kRead, fd, 0, {target})})
              .is_ok());
  CHECK(world.engine().stop(world.now_ns() + 5 * kNsPerS));
  for (const int end : ends) ::close(end);
}

TEST_CASE("a ring whose last op ends behind the wake-up of stop() does not sleep on") {
  if (!has_ring()) return;
  // The ring's thread has to be in the kernel by then, which it mostly is not at once.
  for (int round = 0; round < 20; ++round) {
    CAPTURE(round);
    check_last_op_behind_wake_up();
  }
}

TEST_CASE("a task that is stuck lets the ring engine stop at its deadline") {
  if (!has_ring()) return;
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_entered = false;
    bool is_open = false;
    bool is_passed = false;
  };
  auto gate = std::make_shared<Gate>();
  UringIoWorld world;
  IoOp task;
  task.kind = IoKind::kTask;
  task.task = [gate] {
    std::unique_lock<std::mutex> lock(gate->mutex);
    gate->is_entered = true;
    gate->changed.notify_all();
    gate->changed.wait(lock, [&] { return gate->is_open; });
    gate->is_passed = true;
    gate->changed.notify_all();
    return Status::ok();
  };
  REQUIRE(world.engine().submit({std::move(task)}).is_ok());
  std::unique_lock<std::mutex> lock(gate->mutex);
  REQUIRE(gate->changed.wait_for(lock, kPatience, [&] { return gate->is_entered; }));
  lock.unlock();
  CHECK_FALSE(world.engine().stop(world.now_ns() + 20 * kNsPerMs));
  const int num_calls = world.num_calls();
  world.destroy_engine();
  lock.lock();
  gate->is_open = true;
  gate->changed.notify_all();
  CHECK(gate->changed.wait_for(lock, kPatience, [&] { return gate->is_passed; }));
  CHECK(world.num_calls() == num_calls);
}

}  // namespace
}  // namespace kvtier::testing
