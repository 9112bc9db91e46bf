// Ready points: taken before the jobs that wait for them, shared, and free of the engine's life.
#include "transfer/ready_point.h"

#include <doctest/doctest.h>

#include <utility>

#include "transfer/transfer_world.h"

namespace kvtier::testing {
namespace {

using transfer::ReadyPoint;
using transfer::TransferDirection;
using transfer::TransferJobId;
using transfer::TransferMethod;

std::shared_ptr<const ReadyPoint> ready_of(TransferWorld& world) {
  auto ready = world.engine->record_ready(TransferWorld::kStream);
  REQUIRE_MESSAGE(ready.is_ok(), ready.status().to_string());
  return std::move(ready).value();
}

TEST_CASE("jobs that share a ready point wait for the kernel before it, not for one behind it") {
  for (const TransferMethod method : kAllMethods) {
    TransferWorld world(kPlainShape);
    world.write_block(2, world.payload(9));
    world.host.submit_kernel(TransferWorld::kStream, kNsPerMs,
                             [&] { world.write_block(2, world.payload(1)); });
    world.base_request.ready = ready_of(world);
    // Put on the stream before the jobs are submitted, and yet none of their business.
    bool is_next_done = false;
    world.host.submit_kernel(TransferWorld::kStream, kNsPerS, [&] { is_next_done = true; });
    const TransferJobId first = world.submit(kSave, {{2, 0, 1}}, method);
    const TransferJobId second = world.submit(kSave, {{2, 1, 1}}, method);
    world.base_request.ready.reset();
    for (int turn = 0; turn < 5; ++turn) world.engine->advance();
    CHECK_FALSE(world.has_ended(first));
    CHECK(world.slot(0)[0] == kEmpty);
    for (int turn = 0; turn < 5; ++turn) {
      world.clock.advance_ns(kNsPerMs);
      world.engine->advance();
    }
    REQUIRE(world.has_ended(first));
    REQUIRE(world.has_ended(second));
    CHECK(world.take(first).status.is_ok());
    CHECK(world.take(second).status.is_ok());
    CHECK(are_equal(world.slot(0), world.payload(1)));
    CHECK(are_equal(world.slot(1), world.payload(1)));
    CHECK_FALSE(is_next_done);
  }
}

TEST_CASE("a load behind a ready point does not write before the kernel that still reads") {
  TransferWorld world(kPlainShape);
  world.write_block(2, world.payload(9));
  const auto bytes = world.payload(1);
  std::copy(bytes.begin(), bytes.end(), world.slot(0).begin());
  std::vector<std::byte> seen;
  world.host.submit_kernel(TransferWorld::kStream, kNsPerMs, [&] { seen = world.read_block(2); });
  world.base_request.ready = ready_of(world);
  // The stream that the request names besides is not looked at.
  world.base_request.stream = {4711};
  const TransferJobId job_id = world.submit(kLoad, {{2, 0, 1}});
  world.settle();
  CHECK(world.take(job_id).status.is_ok());
  CHECK(are_equal(seen, world.payload(9)));
  CHECK(are_equal(world.read_block(2), world.payload(1)));
}

TEST_CASE("a ready point may be let go after the engine closed and after it is gone") {
  TransferWorld world(kPlainShape);
  auto ready = ready_of(world);
  const Event event = ready->event();
  CHECK(world.host.query_event(event).is_ok());
  CHECK(world.engine->close(kNeverNs));
  CHECK(world.engine->record_ready(TransferWorld::kStream).status().code() == StatusCode::kClosed);
  world.engine.reset();
  CHECK(world.host.query_event(event).is_ok());
  ready.reset();
  CHECK(world.host.query_event(event).status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("the event of a ready point is given back with the last job that waits for it") {
  TransferWorld world(kPlainShape);
  world.base_request.ready = ready_of(world);
  const Event event = world.base_request.ready->event();
  const TransferJobId job_id = world.submit(kSave, {{2, 0, 1}});
  world.base_request.ready.reset();
  CHECK(world.host.query_event(event).is_ok());
  world.settle();
  CHECK(world.host.query_event(event).status().code() == StatusCode::kInvalidArgument);
  CHECK(world.take(job_id).status.is_ok());
}

TEST_CASE("a ready point of another device is refused") {
  TransferWorld other(kPlainShape);
  TransferWorld world(kPlainShape);
  world.base_request.ready = ready_of(other);
  const auto refused = world.try_submit(kSave, {{0, 0, 1}}, TransferMethod::kAuto);
  CHECK(refused.status().code() == StatusCode::kInvalidArgument);
  CHECK(refused.status().message().find("another device") != std::string::npos);
}

}  // namespace
}  // namespace kvtier::testing
