// What a transfer engine does when something beneath it throws, answers nonsense, holds its thread
// or is forked away: jobs end once, buffers are free only when they are.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "testing/without_leak_check.h"
#include "transfer/transfer_world.h"

namespace kvtier::testing {
namespace {

using transfer::TransferDirection;
using transfer::TransferEngine;
using transfer::TransferJobId;
using transfer::TransferMethod;
using transfer::TransferResult;
using Rows = std::vector<TransferWorld::Row>;

// Throws at the device's call of that number, counted from 1; whether there were so many.
bool run_with_throw_at(TransferDirection direction, TransferMethod method, std::uint64_t throw_at) {
  TransferWorld world({"one chunk", {65536}, {}, 0, 0});
  world.host.set_copy_delay_ns(kNsPerMs);
  Rows rows;
  for (std::uint64_t index = 0; index < 5; ++index) {
    rows.push_back({static_cast<std::int64_t>(index), index, index + 1});
    const auto bytes = world.payload(index + 1);
    if (direction == kSave) world.write_block(static_cast<std::int64_t>(index), bytes);
    if (direction == kLoad) std::copy(bytes.begin(), bytes.end(), world.slot(index).begin());
  }
  const TransferJobId polled = world.submit(direction, {{10, 10, 9}}, method, false);
  std::vector<TransferResult> results;
  world.base_request.on_result = [&](TransferResult result) { results.push_back(result); };
  world.submit(direction, rows, method);
  world.submit(direction, {{11, 11, 9}}, method, false);
  std::uint64_t num_calls = 0;
  world.device.on_call = [&](DeviceCall) {
    if (++num_calls == throw_at) throw std::bad_alloc();
    return Status::ok();
  };
  world.settle();
  for (int turn = 0; turn < 20; ++turn) {
    world.clock.advance_ns(kNsPerMs);
    world.settle();
  }
  const bool has_thrown = num_calls >= throw_at;
  REQUIRE(world.has_ended(polled));
  REQUIRE(results.size() == 2);
  results.push_back(world.take(polled));
  for (const TransferResult& result : results) {
    CHECK((result.status.is_ok() || result.status.code() == StatusCode::kInternal));
    if (!result.status.is_ok() && direction == kLoad) {
      CHECK_FALSE(result.undefined_block_ids.empty());
    }
  }
  const auto after = std::pair(world.arena, world.memory);
  world.device.on_call = nullptr;
  const auto next = world.try_submit(direction, rows, method);
  if (has_thrown) {
    CHECK(next.status().code() == StatusCode::kInternal);
    CHECK(next.status().message().find("transfer engine failed") != std::string::npos);
    CHECK(world.engine->note().find("transfer engine failed") != std::string::npos);
  }
  // Nobody touches anything any more.
  world.clock.advance_ns(kNsPerS);
  world.host.run_due();
  if (has_thrown) CHECK(after == std::pair(world.arena, world.memory));
  CHECK(world.engine->close(0));
  return has_thrown;
}

TEST_CASE("whichever call of the device throws, each job ends once and after the device's work") {
  for (const TransferDirection direction : {kSave, kLoad}) {
    for (const TransferMethod method : kAllMethods) {
      std::uint64_t throw_at = 1;
      while (run_with_throw_at(direction, method, throw_at)) ++throw_at;
      CHECK(throw_at > 20);
    }
  }
}

TEST_CASE("who receives a result and throws fails the engine, not the process") {
  TransferWorld world(kPlainShape);
  int num_calls = 0;
  world.base_request.on_result = [&](TransferResult) {
    ++num_calls;
    throw std::bad_alloc();
  };
  world.submit(kSave, {{0, 0, 1}});
  world.submit(kSave, {{1, 1, 1}});
  world.settle();
  CHECK(num_calls == 2);
  CHECK(world.try_submit(kSave, {{2, 2, 1}}, TransferMethod::kAuto).status().code() ==
        StatusCode::kInternal);
  CHECK(world.engine->close(0));
}

TEST_CASE("a chunk whose end could not be recorded keeps its job until it can") {
  for (const TransferMethod method : kAllMethods) {
    TransferWorld world(kPlainShape);
    world.host.set_copy_delay_ns(kNsPerMs);
    bool is_refusing = false;
    bool has_submitted = false;
    world.device.on_call = [&](DeviceCall call) {
      has_submitted = has_submitted || call == DeviceCall::kSubmitCopies ||
                      call == DeviceCall::kSubmitBlockCopy;
      const bool is_refused = is_refusing && has_submitted && call == DeviceCall::kRecordLane;
      return is_refused ? Status(StatusCode::kExhausted, "no record") : Status::ok();
    };
    is_refusing = true;
    const TransferJobId job_id = world.submit(kLoad, {{0, 0, 1}}, method, false);
    world.engine->advance();
    const TransferJobId waiting = world.submit(kLoad, {{1, 1, 1}}, method, false);
    world.clock.advance_ns(kNsPerS);
    for (int turn = 0; turn < 5; ++turn) world.engine->advance();
    // What it wrote is there by now, but nobody could see that.
    CHECK_FALSE(world.has_ended(job_id));
    CHECK(world.has_ended(waiting));
    CHECK(world.take(waiting).status.message() == "no record");
    is_refusing = false;
    world.settle();
    REQUIRE(world.has_ended(job_id));
    CHECK(world.take(job_id).status.message() == "no record");
    // And the engine is of use again.
    const TransferJobId next = world.submit(kLoad, {{2, 2, 1}}, method, false);
    world.settle();
    CHECK(world.take(next).status.is_ok());
  }
}

TEST_CASE("an event that cannot be asked for does not end a job that is under way") {
  TransferWorld world(kPlainShape);
  world.host.set_copy_delay_ns(kNsPerMs);
  world.write_block(0, world.payload(1));
  const TransferJobId job_id = world.submit(kSave, {{0, 0, 1}});
  world.engine->advance();
  world.device.on_call = [](DeviceCall call) {
    return call == DeviceCall::kQueryEvent ? Status(StatusCode::kIoError, "no answer")
                                           : Status::ok();
  };
  for (int turn = 0; turn < 5; ++turn) world.engine->advance();
  CHECK_FALSE(world.has_ended(job_id));
  CHECK(world.slot(0)[0] == kEmpty);
  world.device.on_call = nullptr;
  world.settle();
  REQUIRE(world.has_ended(job_id));
  CHECK(world.take(job_id).status.message() == "no answer");
  CHECK(world.device.failure().is_ok());
}

TEST_CASE("tensors that are detached while a job is being submitted are not used") {
  TransferWorld world(kPlainShape);
  bool is_detached = false;
  world.device.on_call = [&](DeviceCall call) {
    if (call == DeviceCall::kRecordEvent && !is_detached) {
      is_detached = true;
      CHECK(world.engine->detach(world.attachment_id).is_ok());
    }
    return Status::ok();
  };
  const auto refused = world.try_submit(kSave, {{0, 0, 1}}, TransferMethod::kAuto);
  CHECK(is_detached);
  CHECK(refused.status().code() == StatusCode::kInvalidArgument);
  CHECK(world.engine->close(0));
}

TEST_CASE("methods and directions that are none are refused") {
  TransferWorld world(kPlainShape);
  const auto method =
      world.try_submit(kSave, {{0, 0, 1}}, static_cast<TransferMethod>(transfer::kNumMethods + 1));
  CHECK(method.status().message().find("method=4") != std::string::npos);
  const auto direction =
      world.try_submit(static_cast<TransferDirection>(2), {{0, 0, 1}}, TransferMethod::kAuto);
  CHECK(direction.status().message().find("direction=2") != std::string::npos);
}

TEST_CASE("what a closed engine has in flight is looked after until it ends") {
  TransferWorld world(kPlainShape);
  world.write_block(0, world.payload(1));
  world.host.set_copy_delay_ns(kNsPerMs);
  const TransferJobId job_id = world.submit(kSave, {{0, 0, 1}});
  world.engine->advance();
  CHECK_FALSE(world.engine->close(0));
  CHECK_FALSE(world.engine->has_stopped());
  CHECK_FALSE(world.has_ended(job_id));
  world.settle();
  CHECK(world.has_ended(job_id));
  CHECK(world.engine->close(0));
  CHECK(world.engine->has_stopped());
}

/// An engine with a thread over a device that can be held up.
class ThreadedWorld {
 public:
  ThreadedWorld() {
    transfer::TransferOptions options;
    options.is_calibrated = false;
    engine = std::move(TransferEngine::create(device, clock, options)).value();
    const layout::TensorPlace tensor{memory.data(), memory.size()};
    const layout::FragmentPlace fragment{0, 0, 8192, 8192};
    const std::uint64_t block_bytes = 8192;
    request.attachment_id = engine->attach({&tensor, 1}, {&fragment, 1}, {&block_bytes, 1}).value();
    request.block_ids = {&block_id, 1};
    request.slots = {&slot, 1};
  }

  SystemClock clock;
  HostDevice host{clock};
  DeviceDouble device{host};
  std::vector<std::byte> memory = make_payload({1, 0}, 8192);
  std::vector<std::byte> arena = std::vector<std::byte>(8192);
  const std::int64_t block_id = 0;
  std::byte* const slot = arena.data();
  transfer::TransferRequest request;
  std::unique_ptr<TransferEngine> engine;
};

TEST_CASE("closing is bounded while a call of the driver holds the thread") {
  ThreadedWorld world;
  std::mutex mutex;
  std::condition_variable changed;
  bool is_held = false;
  bool is_let_go = false;
  world.device.on_call = [&](DeviceCall call) {
    if (call != DeviceCall::kSubmitBlockCopy && call != DeviceCall::kSubmitCopies) {
      return Status::ok();
    }
    std::unique_lock<std::mutex> lock(mutex);
    is_held = true;
    changed.notify_all();
    changed.wait(lock, [&] { return is_let_go; });
    return Status::ok();
  };
  const TransferJobId job_id = world.engine->submit(world.request).value();
  {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return is_held; });
  }
  const TimeNs begin_ns = world.clock.now_ns();
  CHECK_FALSE(world.engine->close(begin_ns + 10 * kNsPerMs));
  CHECK(world.clock.now_ns() - begin_ns < 5 * kNsPerS);
  CHECK_FALSE(world.engine->has_stopped());
  {
    std::lock_guard<std::mutex> lock(mutex);
    is_let_go = true;
    changed.notify_all();
  }
  CHECK(world.engine->wait(job_id, world.clock.now_ns() + 10 * kNsPerS));
  CHECK(world.engine->close(world.clock.now_ns() + 10 * kNsPerS));
  CHECK(world.engine->has_stopped());
}

TEST_CASE("destroying an engine whose thread the driver holds leaves the thread what it needs") {
  const WithoutLeakCheck without_leak_check;
  // Never destroyed: the thread may come back to it at any time, and here it does.
  auto& world = *new ThreadedWorld;
  static std::atomic<bool> is_held{false};
  static std::atomic<bool> is_let_go{false};
  static std::atomic<bool> is_back{false};
  world.device.on_call = [](DeviceCall call) {
    if (call == DeviceCall::kSubmitBlockCopy || call == DeviceCall::kSubmitCopies) {
      is_held = true;
      is_held.notify_all();
      is_let_go.wait(false);
    }
    if (is_let_go) {
      is_back = true;
      is_back.notify_all();
    }
    return Status::ok();
  };
  REQUIRE(world.engine->submit(world.request).is_ok());
  is_held.wait(false);
  world.engine.reset();
  is_let_go = true;
  is_let_go.notify_all();
  is_back.wait(false);
}

TEST_CASE("a forked child destroys engine and device at once, and its calls say why they fail") {
  const WithoutLeakCheck without_leak_check;
  auto world = std::make_unique<ThreadedWorld>();
  auto ready = world->engine->record_ready({1}).value();
  // Somebody is inside the device as the process forks, with its mutex held.
  std::atomic<bool> is_inside{false};
  std::atomic<bool> may_leave{false};
  world->host.submit_kernel({9}, 0, [&] {
    is_inside = true;
    is_inside.notify_all();
    may_leave.wait(false);
  });
  std::thread inside([&] { world->host.run_due(); });
  is_inside.wait(false);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(20);  // A hang ends the child by a signal, and the test fails.
    int num_wrong = 0;
    TransferEngine& engine = *world->engine;
    num_wrong += engine.submit(world->request).status().code() != StatusCode::kClosed;
    num_wrong += engine.record_ready({1}).status().code() != StatusCode::kClosed;
    num_wrong += engine.detach(world->request.attachment_id).code() != StatusCode::kClosed;
    num_wrong += engine.add_host_memory(world->arena).code() != StatusCode::kClosed;
    num_wrong += engine.take(1).status().code() != StatusCode::kClosed;
    num_wrong += engine.order_stream_after(1, {1}, 0).code() != StatusCode::kClosed;
    engine.cancel(1);
    num_wrong += !engine.wait(1, kNeverNs);
    num_wrong += engine.advance() != kNeverNs;
    num_wrong += engine.stats().staging_bytes != 0;
    num_wrong += !engine.note().empty();
    num_wrong += !engine.close(kNeverNs);
    num_wrong += world->host.failure().code() != StatusCode::kClosed;
    world->engine.reset();
    ready.reset();
    ::_exit(num_wrong);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  may_leave = true;
  may_leave.notify_all();
  inside.join();
  CHECK(world->engine->close(world->clock.now_ns() + 10 * kNsPerS));
}

}  // namespace
}  // namespace kvtier::testing
