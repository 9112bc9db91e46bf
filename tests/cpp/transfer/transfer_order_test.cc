// Order of transfers against an engine's streams, and what is left of a job that is cancelled.
#include <doctest/doctest.h>

#include <algorithm>

#include "transfer/transfer_world.h"

namespace kvtier::testing {
namespace {

using transfer::TransferDirection;
using transfer::TransferJobId;
using transfer::TransferMethod;
using transfer::TransferResult;
using Rows = std::vector<TransferWorld::Row>;

constexpr auto kSave = TransferDirection::kSave;
constexpr auto kLoad = TransferDirection::kLoad;

const BlockShape kPlainShape{"two layers", {8192, 8192}, {}, 4096, 0};

TEST_CASE("a save waits for the kernel that writes its blocks") {
  for (const TransferMethod method : kAllMethods) {
    TransferWorld world(kPlainShape);
    world.write_block(2, world.payload(9));
    world.host.submit_kernel(TransferWorld::kStream, kNsPerMs,
                             [&] { world.write_block(2, world.payload(1)); });
    const TransferJobId job_id = world.submit(kSave, {{2, 0, 1}}, method);
    for (int turn = 0; turn < 5; ++turn) world.engine->advance();
    CHECK_FALSE(world.has_ended(job_id));
    CHECK(world.slot(0)[0] == TransferWorld::kEmpty);
    world.clock.advance_ns(kNsPerMs);
    world.settle();
    const TransferResult result = world.take(job_id);
    CHECK(result.status.is_ok());
    CHECK(are_equal(world.slot(0), world.payload(1)));
    CHECK(result.checksums == world.checksums_of(1));
  }
}

TEST_CASE("a load waits for the kernel that still reads its blocks") {
  for (const TransferMethod method : kAllMethods) {
    TransferWorld world(kPlainShape);
    world.write_block(2, world.payload(9));
    const auto bytes = world.payload(1);
    std::copy(bytes.begin(), bytes.end(), world.slot(0).begin());
    std::vector<std::byte> seen;
    world.host.submit_kernel(TransferWorld::kStream, kNsPerMs, [&] { seen = world.read_block(2); });
    const TransferJobId job_id = world.submit(kLoad, {{2, 0, 1}}, method);
    for (int turn = 0; turn < 5; ++turn) world.engine->advance();
    CHECK(are_equal(world.read_block(2), world.payload(9)));
    world.clock.advance_ns(kNsPerMs);
    world.settle();
    CHECK(world.take(job_id).status.is_ok());
    CHECK(are_equal(seen, world.payload(9)));
    CHECK(are_equal(world.read_block(2), world.payload(1)));
  }
}

TEST_CASE("a stream that was ordered after a load sees its bytes") {
  TransferWorld world(kPlainShape);
  world.host.set_copy_delay_ns(kNsPerMs);
  const auto bytes = world.payload(1);
  std::copy(bytes.begin(), bytes.end(), world.slot(0).begin());
  const TransferJobId job_id = world.submit(kLoad, {{2, 0, 1}}, TransferMethod::kStaged);
  const StreamId compute{42};
  REQUIRE(world.engine->order_stream_after(job_id, compute, 0).is_ok());
  CHECK_FALSE(world.has_ended(job_id));
  std::vector<std::byte> seen;
  world.host.submit_kernel(compute, 0, [&] { seen = world.read_block(2); });
  world.host.run_due();
  CHECK(seen.empty());
  world.settle();
  world.host.run_due();
  CHECK(are_equal(seen, world.payload(1)));
  CHECK(world.take(job_id).status.is_ok());
  CHECK(world.engine->order_stream_after(job_id, compute, 0).code() == StatusCode::kNotFound);
}

TEST_CASE("a stream cannot be ordered after what was not submitted yet") {
  TransferWorld world(kPlainShape);
  world.host.submit_kernel(TransferWorld::kStream, kNeverNs, [] {});
  world.submit(kSave, {{0, 0, 1}});
  const TransferJobId job_id = world.submit(kSave, {{1, 1, 2}});
  // The first waits on the device for its stream; this one behind it.
  CHECK(world.engine->order_stream_after(job_id, {42}, 0).code() == StatusCode::kTimeout);
  world.host.fail_device(Status(StatusCode::kIoError, "end of test"));
  world.settle();
}

TEST_CASE("a job whose stream has come so far passes one that still waits") {
  TransferWorld world(kPlainShape);
  world.write_block(1, world.payload(2));
  world.host.submit_kernel(TransferWorld::kStream, kNsPerS, [] {});
  // Something is under way already, so that neither is handed to the device at once.
  world.host.set_copy_delay_ns(kNsPerMs);
  transfer::TransferRequest request;
  const std::int64_t block_id = 1;
  std::byte* slot = world.slot(1).data();
  request.attachment_id = world.attachment_id;
  request.block_ids = {&block_id, 1};
  request.slots = {&slot, 1};
  request.stream = {7};
  const TransferJobId first = world.engine->submit(request).value();
  world.engine->advance();
  const TransferJobId late = world.submit(kSave, {{0, 0, 1}});
  const TransferJobId ready = world.engine->submit(request).value();
  for (int turn = 0; turn < 10; ++turn) {
    world.engine->advance();
    world.clock.advance_ns(kNsPerMs);
  }
  CHECK(world.has_ended(first));
  CHECK(world.has_ended(ready));
  CHECK_FALSE(world.has_ended(late));
  world.settle();
  CHECK(world.has_ended(late));
}

TEST_CASE("a job that is cancelled before it began touches nothing") {
  TransferWorld world(kPlainShape);
  world.write_block(2, world.payload(9));
  world.host.submit_kernel(TransferWorld::kStream, kNsPerMs, [] {});
  const TransferJobId first = world.submit(kLoad, {{0, 0, 1}});
  world.engine->advance();
  const TransferJobId job_id = world.submit(kLoad, {{2, 0, 1}});
  world.engine->cancel(job_id);
  world.engine->cancel(987);
  CHECK(world.has_ended(job_id));
  const TransferResult result = world.take(job_id);
  CHECK(result.status.code() == StatusCode::kCancelled);
  CHECK(result.undefined_block_ids == std::vector<std::int64_t>{2});
  world.clock.advance_ns(kNsPerMs);
  world.settle();
  CHECK(are_equal(world.read_block(2), world.payload(9)));
  CHECK(world.has_ended(first));
  CHECK(world.engine->stats().cancelled_jobs == 1);
}

TEST_CASE("a cancelled job ends when what is in flight has ended, and then nobody touches it") {
  for (const TransferMethod method : kAllMethods) {
    TransferWorld world({"large", {400000}, {}, 0, 0});
    world.host.set_copy_delay_ns(kNsPerMs);
    Rows rows;
    for (std::int64_t index = 0; index < 16; ++index) {
      rows.push_back({index, static_cast<std::uint64_t>(index), 1});
      world.write_block(index, world.payload(1));
    }
    const TransferJobId job_id = world.submit(kSave, rows, method);
    world.engine->advance();
    world.engine->cancel(job_id);
    CHECK_FALSE(world.has_ended(job_id));
    world.settle();
    REQUIRE(world.has_ended(job_id));
    const TransferResult result = world.take(job_id);
    CHECK(result.status.code() == StatusCode::kCancelled);
    CHECK(result.checksums.empty());
    const std::vector<std::byte> after = world.arena;
    world.clock.advance_ns(kNsPerS);
    world.settle();
    CHECK(are_equal(world.arena, after));
    CHECK(world.slot(15)[0] == TransferWorld::kEmpty);
  }
}

}  // namespace
}  // namespace kvtier::testing
