// Order of transfers against an engine's streams, and what is left of a job that is cancelled.
#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

#include "transfer/transfer_world.h"

namespace kvtier::testing {
namespace {

using transfer::TransferDirection;
using transfer::TransferJobId;
using transfer::TransferMethod;
using transfer::TransferResult;
using Rows = std::vector<TransferWorld::Row>;

TEST_CASE("a save waits for the kernel that writes its blocks") {
  for (const TransferMethod method : kAllMethods) {
    TransferWorld world(kPlainShape);
    world.write_block(2, world.payload(9));
    world.host.submit_kernel(TransferWorld::kStream, kNsPerMs,
                             [&] { world.write_block(2, world.payload(1)); });
    const TransferJobId job_id = world.submit(kSave, {{2, 0, 1}}, method);
    for (int turn = 0; turn < 5; ++turn) world.engine->advance();
    CHECK_FALSE(world.has_ended(job_id));
    CHECK(world.slot(0)[0] == kEmpty);
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

TEST_CASE("a stream that was ordered after a load sees all its chunks") {
  // A chunk a block, behind another load.
  TransferWorld world({"one chunk", {65536}, {}, 0, 0});
  world.host.set_copy_delay_ns(kNsPerMs);
  for (std::uint64_t index = 0; index < 4; ++index) {
    const auto bytes = world.payload(index + 1);
    std::copy(bytes.begin(), bytes.end(), world.slot(index).begin());
  }
  const auto method = TransferMethod::kCopyEngine;
  const TransferJobId other = world.submit(kLoad, {{0, 0, 1}}, method);
  const TransferJobId job_id =
      world.submit(kLoad, {{1, 1, 2}, {2, 2, 3}, {3, 3, 4}}, method, false);
  const StreamId compute{42};
  REQUIRE(world.engine->order_stream_after(job_id, compute, 0).is_ok());
  bool is_whole = false;
  world.host.submit_kernel(compute, 0, [&] {
    is_whole = are_equal(world.read_block(1), world.payload(2)) &&
               are_equal(world.read_block(2), world.payload(3)) &&
               are_equal(world.read_block(3), world.payload(4));
  });
  world.settle();
  world.host.run_due();
  CHECK(is_whole);
  CHECK(world.take(job_id).status.is_ok());
  CHECK(world.take(other).status.is_ok());
}

// A chunk a block, more chunks than staging buffers, all submitted at once.
struct StagedRun {
  bool is_right = false;
  std::uint64_t num_orders = 0;  // Of lanes.
};

enum class SlowStep : std::uint8_t { kKernel, kCopy };

StagedRun run_staged(TransferDirection direction, SlowStep slow_step, std::uint64_t missing_order) {
  constexpr std::uint64_t kNumChunks = 5;
  TransferWorld world({"one chunk", {65536}, {}, 0, 0});
  const bool is_kernel_slow = slow_step == SlowStep::kKernel;
  world.host.set_copy_delay_ns(is_kernel_slow ? kNsPerMs : 10 * kNsPerMs);
  world.host.set_block_copy_delay_ns(is_kernel_slow ? 10 * kNsPerMs : kNsPerMs);
  Rows rows;
  for (std::uint64_t index = 0; index < kNumChunks; ++index) {
    rows.push_back({static_cast<std::int64_t>(index), index, index + 1});
    const auto bytes = world.payload(index + 1);
    if (direction == kSave) world.write_block(static_cast<std::int64_t>(index), bytes);
    if (direction == kLoad) std::copy(bytes.begin(), bytes.end(), world.slot(index).begin());
  }
  if (missing_order != 0) world.host.leave_out_lane_order_after(missing_order - 1);
  const TransferJobId job_id = world.submit(direction, rows, TransferMethod::kStaged);
  world.settle();
  const TransferResult result = world.take(job_id);
  StagedRun run{result.status.is_ok(), world.host.num_lane_orders()};
  std::vector<std::uint64_t> sums;
  for (const auto& row : rows) {
    run.is_right = run.is_right && are_equal(world.slot(row.slot_index), world.payload(row.key)) &&
                   are_equal(world.read_block(row.block_id), world.payload(row.key));
    const auto of_block = world.checksums_of(row.key);
    sums.insert(sums.end(), of_block.begin(), of_block.end());
  }
  if (direction == kSave) run.is_right = run.is_right && result.checksums == sums;
  CHECK(world.engine->stats().num_chunks == kNumChunks);
  return run;
}

TEST_CASE("each order between the kernels and the copies of staged chunks is there and needed") {
  for (const TransferDirection direction : {kSave, kLoad}) {
    const StagedRun whole = run_staged(direction, SlowStep::kKernel, 0);
    CHECK(whole.is_right);
    CHECK(run_staged(direction, SlowStep::kCopy, 0).is_right);
    // The stream; five second steps after their first; the three buffers that are used again.
    REQUIRE(whole.num_orders == 1 + 5 + 3);
    // Without any one of them either a second step takes what is not there yet, or a first one
    // overwrites what is not taken yet. The stream's order has tests of its own.
    for (std::uint64_t missing = 2; missing <= whole.num_orders; ++missing) {
      INFO("direction: ", static_cast<int>(direction), " missing: ", missing);
      CHECK_FALSE((run_staged(direction, SlowStep::kKernel, missing).is_right &&
                   run_staged(direction, SlowStep::kCopy, missing).is_right));
    }
  }
}

TEST_CASE("a result is there only when the digests of its last chunk are") {
  for (const TransferDirection direction : {kSave, kLoad}) {
    for (const TransferMethod method : kAllMethods) {
      TransferWorld world({"one chunk", {65536}, {}, 0, 0});
      world.host.set_copy_delay_ns(3 * kNsPerMs);
      world.host.set_block_copy_delay_ns(5 * kNsPerMs);
      const Rows rows = {{0, 0, 1}, {1, 1, 2}, {2, 2, 3}};
      for (const auto& row : rows) {
        const auto bytes = world.payload(row.key);
        world.write_block(row.block_id, bytes);
        std::copy(bytes.begin(), bytes.end(), world.slot(row.slot_index).begin());
      }
      const TransferJobId job_id = world.submit(direction, rows, method);
      std::size_t num_looks = 0;
      for (; !world.has_ended(job_id) && num_looks < 100; ++num_looks) {
        world.clock.advance_ns(kNsPerMs);
        world.engine->advance();
      }
      CHECK(num_looks > 5);
      const TransferResult result = world.take(job_id);
      CHECK_MESSAGE(result.status.is_ok(), result.status.to_string());
      std::vector<std::uint64_t> sums;
      for (const auto& row : rows) {
        const auto of_block = world.checksums_of(row.key);
        if (direction == kSave) sums.insert(sums.end(), of_block.begin(), of_block.end());
      }
      CHECK(result.checksums == sums);
    }
  }
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

TEST_CASE("a kernel that takes the whole budget runs beside no other") {
  // Staged chunks take two steps, the others one; each step takes a millisecond.
  const auto is_empty_after = [](TransferMethod first, TransferMethod second, TimeNs time_ns) {
    TransferWorld world(kPlainShape);
    world.host.set_copy_delay_ns(kNsPerMs);
    for (std::int64_t index = 0; index < 3; ++index) world.write_block(index, world.payload(1));
    world.submit(kSave, {{1, 1, 1}}, first, false);
    const TransferJobId job_id = world.submit(kSave, {{2, 2, 1}}, second, false);
    world.engine->advance();
    world.clock.advance_ns(time_ns);
    world.host.run_due();
    const bool is_empty = world.slot(2)[0] == kEmpty;
    world.settle();
    CHECK(world.take(job_id).status.is_ok());
    return is_empty;
  };
  // Kernel after kernel; a staged chunk is there one step after its kernel.
  const auto staged = TransferMethod::kStaged;
  const auto zero_copy = TransferMethod::kZeroCopy;
  CHECK(is_empty_after(staged, zero_copy, 2 * kNsPerMs - 1));
  CHECK_FALSE(is_empty_after(staged, zero_copy, 2 * kNsPerMs));
  CHECK(is_empty_after(zero_copy, staged, 3 * kNsPerMs - 1));
  CHECK_FALSE(is_empty_after(zero_copy, staged, 3 * kNsPerMs));
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
    CHECK(world.slot(15)[0] == kEmpty);
  }
}

}  // namespace
}  // namespace kvtier::testing
