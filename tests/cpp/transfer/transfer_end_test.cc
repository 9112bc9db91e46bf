// Results that are handed over by a call: exactly once, however a job ends.
#include <doctest/doctest.h>

#include <atomic>
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

/// Collects the results of the jobs that are submitted from now on.
class Receiver {
 public:
  explicit Receiver(TransferWorld& world) {
    world.base_request.on_result = [this](TransferResult result) {
      results.push_back(std::move(result));
    };
  }
  std::vector<TransferResult> results;
};

TEST_CASE("a result is handed over once, and poll and take do not have it") {
  TransferWorld world(kPlainShape);
  world.write_block(3, world.payload(1));
  Receiver receiver(world);
  const TransferJobId job_id = world.submit(kSave, {{3, 5, 1}});
  CHECK(world.engine->take(job_id).status().code() == StatusCode::kBusy);
  world.settle();
  REQUIRE(receiver.results.size() == 1);
  const TransferResult& result = receiver.results[0];
  CHECK(result.job_id == job_id);
  CHECK(result.status.is_ok());
  CHECK(result.checksums == world.checksums_of(1));
  CHECK(are_equal(world.slot(5), world.payload(1)));
  CHECK(world.engine->take(job_id).status().code() == StatusCode::kNotFound);
  std::vector<TransferResult> polled;
  world.engine->poll(polled);
  CHECK(polled.empty());
  CHECK(world.has_ended(job_id));
  CHECK(world.engine->order_stream_after(job_id, {7}, 0).code() == StatusCode::kNotFound);
  world.settle();
  CHECK(receiver.results.size() == 1);
}

TEST_CASE("a stream can be ordered after a job whose result is handed over") {
  TransferWorld world(kPlainShape);
  world.host.set_copy_delay_ns(kNsPerMs);
  const auto bytes = world.payload(1);
  std::copy(bytes.begin(), bytes.end(), world.slot(0).begin());
  Receiver receiver(world);
  const TransferJobId job_id = world.submit(kLoad, {{2, 0, 1}});
  const StreamId compute{42};
  REQUIRE(world.engine->order_stream_after(job_id, compute, 0).is_ok());
  std::vector<std::byte> seen;
  world.host.submit_kernel(compute, 0, [&] { seen = world.read_block(2); });
  world.settle();
  world.host.run_due();
  CHECK(are_equal(seen, world.payload(1)));
  CHECK(receiver.results.size() == 1);
}

TEST_CASE("a call may submit the next job and make room for it") {
  TransferWorld world(kPlainShape);
  world.write_block(3, world.payload(1));
  std::vector<std::byte> loaded;
  std::vector<TransferJobId> ended;
  world.base_request.on_result = [&](TransferResult saved) {
    CHECK(saved.status.is_ok());
    ended.push_back(saved.job_id);
    world.engine->cancel(saved.job_id);
    CHECK(world.engine->order_stream_after(saved.job_id, {7}, 0).code() == StatusCode::kNotFound);
    world.base_request.on_result = [&](TransferResult result) {
      CHECK(result.status.is_ok());
      ended.push_back(result.job_id);
      loaded = world.read_block(8);
    };
    world.submit(kLoad, {{8, 5, 1}});
  };
  const TransferJobId first = world.submit(kSave, {{3, 5, 1}});
  world.settle();
  CHECK(ended == std::vector<TransferJobId>{first, first + 1});
  CHECK(are_equal(loaded, world.payload(1)));
}

TEST_CASE("each way to end hands the result over exactly once") {
  enum class Way { kCancel, kClose, kBadBlock, kFailedCopy, kLostDevice };
  for (const Way way :
       {Way::kCancel, Way::kClose, Way::kBadBlock, Way::kFailedCopy, Way::kLostDevice}) {
    INFO("way: ", static_cast<int>(way));
    TransferWorld world(kPlainShape);
    world.host.set_copy_delay_ns(kNsPerMs);
    Receiver receiver(world);
    // One that is in flight when it happens, one that waits.
    const bool is_bad = way == Way::kBadBlock;
    if (way == Way::kFailedCopy) {
      world.host.fail_copy_after(0, Status(StatusCode::kIoError, "link error"));
    }
    const TransferJobId flying = world.submit(kLoad, {{0, 0, 1}, {is_bad ? 0 : 1, 1, 2}});
    world.engine->advance();
    const TransferJobId waiting = world.submit(kLoad, {{2, 2, 3}, {is_bad ? 2 : 3, 3, 4}});
    if (way == Way::kCancel) {
      world.engine->cancel(flying);
      world.engine->cancel(waiting);
    }
    if (way == Way::kClose) CHECK_FALSE(world.engine->close(0));
    if (way == Way::kLostDevice) world.host.fail_device(Status(StatusCode::kIoError, "lost"));
    world.settle();
    REQUIRE(receiver.results.size() == 2);
    CHECK(receiver.results[0].job_id + receiver.results[1].job_id == flying + waiting);
    for (const TransferResult& result : receiver.results) {
      // The one in flight may have been whole by the time it was cancelled, with wrong bytes.
      CHECK_FALSE(result.status.is_ok());
      CHECK(result.undefined_block_ids.size() == 2);
    }
    CHECK(world.engine->close(0));
    CHECK(receiver.results.size() == 2);
  }
}

TEST_CASE("a job that is refused, or that the device keeps, hands no result over") {
  const WithoutLeakCheck without_leak_check;
  std::vector<TransferResult> results;
  {
    TransferWorld world(kPlainShape);
    world.base_request.on_result = [&](TransferResult result) { results.push_back(result); };
    CHECK_FALSE(world.try_submit(kSave, {{99, 0, 1}}, TransferMethod::kAuto).is_ok());
    world.host.submit_kernel(TransferWorld::kStream, kNeverNs, [] {});
    world.submit(kSave, {{0, 0, 1}}, TransferMethod::kZeroCopy);
    world.engine->advance();
    CHECK_FALSE(world.engine->close(0));
    world.engine.reset();
  }
  CHECK(results.empty());
}

TEST_CASE("closing an engine with a thread waits for the calls it makes") {
  SystemClock clock;
  HostDevice host(clock);
  transfer::TransferOptions options;
  options.is_calibrated = false;
  auto engine = std::move(TransferEngine::create(host, clock, options)).value();
  std::vector<std::byte> memory = make_payload({1, 0}, 8192);
  std::vector<std::byte> slot(8192);
  const layout::TensorPlace tensor{memory.data(), memory.size()};
  const layout::FragmentPlace fragment{0, 0, 8192, 8192};
  const std::uint64_t block_bytes = 8192;
  const std::int64_t block_id = 0;
  std::byte* place = slot.data();
  transfer::TransferRequest request;
  request.attachment_id = engine->attach({&tensor, 1}, {&fragment, 1}, {&block_bytes, 1}).value();
  request.block_ids = {&block_id, 1};
  request.slots = {&place, 1};
  std::atomic<int> num_ended{0};
  std::atomic<int> num_submitted{0};
  // Each of them submits the next until the engine is closed.
  request.on_result = [&](TransferResult) {
    const int num_before = num_ended.fetch_add(1);
    if (num_before < 20 && engine->submit(request).is_ok()) num_submitted.fetch_add(1);
  };
  for (int index = 0; index < 10; ++index) {
    if (engine->submit(request).is_ok()) num_submitted.fetch_add(1);
  }
  CHECK(engine->close(clock.now_ns() + 10 * kNsPerS));
  CHECK(num_ended.load() == num_submitted.load());
  CHECK(num_ended.load() >= 10);
}

}  // namespace
}  // namespace kvtier::testing
