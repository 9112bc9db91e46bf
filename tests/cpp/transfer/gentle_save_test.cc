// Gentle saves: right bytes and checksums, few kernels, and each order that they rely on.
#include <doctest/doctest.h>

#include <vector>

#include "transfer/transfer_world.h"

namespace kvtier::testing {
namespace {

using transfer::TransferJobId;
using transfer::TransferMethod;
using transfer::TransferResult;
using Rows = std::vector<TransferWorld::Row>;

TransferWorldOptions gentle_options(std::uint64_t num_blocks) {
  TransferWorldOptions options;
  options.num_blocks = num_blocks;
  options.num_slots = num_blocks;
  options.are_saves_gentle = true;
  return options;
}

// Row `index` has key `index` + 1, and its slot is counted from the end.
Rows write_rows(TransferWorld& world, std::uint64_t first, std::uint64_t num_rows) {
  Rows rows;
  for (std::uint64_t index = first; index < first + num_rows; ++index) {
    const auto block_id = static_cast<std::int64_t>(index);
    rows.push_back({block_id, world.options.num_slots - 1 - index, index + 1});
    world.write_block(block_id, world.payload(index + 1));
  }
  return rows;
}

bool is_saved(TransferWorld& world, const Rows& rows, const TransferResult& result) {
  std::vector<std::uint64_t> sums;
  bool is_right = result.status.is_ok();
  for (const auto& row : rows) {
    is_right = is_right && are_equal(world.slot(row.slot_index), world.payload(row.key));
    const auto of_block = world.checksums_of(row.key);
    sums.insert(sums.end(), of_block.begin(), of_block.end());
  }
  return is_right && result.checksums == sums;
}

// One save by the copy engine, checked; returns the number of kernels that it took.
std::uint64_t save_by_copies(TransferWorld& world, std::uint64_t num_rows) {
  std::uint64_t num_kernels = 0;
  world.device.on_call = [&num_kernels](DeviceCall call) {
    if (call == DeviceCall::kSubmitBlockCopy) ++num_kernels;
    return Status::ok();
  };
  const Rows rows = write_rows(world, 0, num_rows);
  const TransferJobId job_id = world.submit(kSave, rows, TransferMethod::kCopyEngine);
  world.settle();
  CHECK(is_saved(world, rows, world.take(job_id)));
  world.device.on_call = nullptr;
  return num_kernels;
}

TEST_CASE("gentle saves of every shape are right") {
  for (const BlockShape& shape : block_shapes()) {
    INFO("shape: ", shape.name);
    TransferWorld world(shape, gentle_options(16));
    world.host.set_copy_delay_ns(1000);
    const Rows first = write_rows(world, 0, 9);
    const Rows second = write_rows(world, 9, 7);
    const TransferJobId first_id = world.submit(kSave, first, TransferMethod::kCopyEngine);
    const TransferJobId second_id = world.submit(kSave, second, TransferMethod::kCopyEngine);
    world.settle();
    CHECK(is_saved(world, first, world.take(first_id)));
    CHECK(is_saved(world, second, world.take(second_id)));
  }
}

TEST_CASE("one kernel of a gentle save hashes what many copies move") {
  const auto count_kernels = [](bool are_saves_gentle) {
    TransferWorldOptions options = gentle_options(64);
    options.are_saves_gentle = are_saves_gentle;
    TransferWorld world({"large", {300000, 100000}, {}, 0, 0}, options);
    world.host.set_copy_delay_ns(1000);
    const std::uint64_t num_kernels = save_by_copies(world, 64);
    // A buffer of digests is used again and again.
    CHECK(num_kernels > 4);
    return num_kernels;
  };
  CHECK(count_kernels(true) * 6 < count_kernels(false));
}

TEST_CASE("a save is gentle where copies are not much slower than kernels") {
  const auto method_of = [](std::vector<std::uint64_t> fragments, bool are_saves_gentle) {
    TransferWorldOptions options = gentle_options(16);
    options.are_saves_gentle = are_saves_gentle;
    options.is_gpu = true;
    TransferWorld world({"fragments", std::move(fragments), {}, 0, 0}, options);
    world.engine->add_page_locked_memory(world.arena);
    const Rows rows = write_rows(world, 0, 16);
    const TransferJobId job_id = world.submit(kSave, rows);
    world.settle();
    const TransferResult result = world.take(job_id);
    CHECK(is_saved(world, rows, result));
    return result.method;
  };
  CHECK(method_of({262144, 262144}, true) == TransferMethod::kCopyEngine);
  CHECK(method_of({262144, 262144}, false) != TransferMethod::kCopyEngine);
  CHECK(method_of(std::vector<std::uint64_t>(64, 1024), true) != TransferMethod::kCopyEngine);
}

TEST_CASE("saves stay gentle when many are under way, and each seems to take long") {
  TransferWorldOptions options = gentle_options(8);
  options.is_gpu = true;
  options.chunk_bytes = 4 << 20;
  // By the general figures copies take about twice as long here as kernels.
  TransferWorld world({"fragments", std::vector<std::uint64_t>(64, 32768), {}, 0, 0}, options);
  world.engine->add_page_locked_memory(world.arena);
  world.host.set_copy_delay_ns(kNsPerMs);
  world.host.set_block_copy_delay_ns(1000);
  for (int round = 0; round < 5; ++round) {
    std::vector<Rows> rows;
    std::vector<TransferJobId> job_ids;
    for (std::uint64_t index = 0; index < 8; ++index) {
      rows.push_back(write_rows(world, index, 1));
      job_ids.push_back(world.submit(kSave, rows.back()));
    }
    world.settle();
    for (std::uint64_t index = 0; index < 8; ++index) {
      const TransferResult result = world.take(job_ids[index]);
      CHECK(is_saved(world, rows[index], result));
      CHECK(result.method == TransferMethod::kCopyEngine);
    }
  }
}

TEST_CASE("a gentle save of more blocks than a kernel's list has takes several kernels") {
  TransferWorldOptions options = gentle_options(500);
  options.chunk_bytes = 1 << 20;
  TransferWorld world({"one leaf", {4096}, {}, 0, 0}, options);
  CHECK(save_by_copies(world, 500) == 3);
}

TEST_CASE("after a gentle save was cancelled or refused half-way, the next ones are right") {
  for (const bool is_cancelled : {true, false}) {
    INFO("cancelled: ", is_cancelled);
    TransferWorld world({"one chunk", {65536}, {}, 0, 0}, gentle_options(32));
    world.host.set_copy_delay_ns(kNsPerMs);
    std::uint64_t num_copies = 0;
    world.device.on_call = [&](DeviceCall call) {
      if (call != DeviceCall::kSubmitCopies || ++num_copies != 3 || is_cancelled) {
        return Status::ok();
      }
      return Status(StatusCode::kIoError, "refused");
    };
    const Rows first = write_rows(world, 0, 16);
    const TransferJobId first_id = world.submit(kSave, first, TransferMethod::kCopyEngine);
    world.engine->advance();
    if (is_cancelled) world.engine->cancel(first_id);
    std::vector<Rows> rows;
    std::vector<TransferJobId> job_ids;
    for (std::uint64_t index = 0; index < 4; ++index) {
      rows.push_back(write_rows(world, 16 + 4 * index, 4));
      job_ids.push_back(world.submit(kSave, rows.back(), TransferMethod::kCopyEngine));
    }
    world.settle();
    CHECK_FALSE(world.take(first_id).status.is_ok());
    for (std::uint64_t index = 0; index < 4; ++index) {
      CHECK(is_saved(world, rows[index], world.take(job_ids[index])));
    }
  }
}

enum class SlowStep : std::uint8_t { kKernel, kCopy };

// Five jobs of one chunk, which take turns in the two buffers of digests.
bool are_jobs_right(SlowStep slow_step, std::uint64_t missing_order, std::uint64_t num_orders) {
  constexpr std::uint64_t kNumJobs = 5;
  TransferWorld world({"one chunk", {65536}, {}, 0, 0}, gentle_options(kNumJobs));
  const bool is_kernel_slow = slow_step == SlowStep::kKernel;
  world.host.set_copy_delay_ns(is_kernel_slow ? kNsPerMs : 10 * kNsPerMs);
  world.host.set_block_copy_delay_ns(is_kernel_slow ? 10 * kNsPerMs : kNsPerMs);
  if (missing_order != 0) world.host.leave_out_lane_order_after(missing_order - 1);
  std::vector<Rows> rows;
  std::vector<TransferJobId> job_ids;
  for (std::uint64_t index = 0; index < kNumJobs; ++index) {
    rows.push_back(write_rows(world, index, 1));
    job_ids.push_back(world.submit(kSave, rows.back(), TransferMethod::kCopyEngine));
  }
  world.settle();
  bool is_right = true;
  for (std::uint64_t index = 0; index < kNumJobs; ++index) {
    is_right = is_saved(world, rows[index], world.take(job_ids[index])) && is_right;
  }
  CHECK(world.host.num_lane_orders() == num_orders);
  return is_right;
}

TEST_CASE("each order between the kernels and the copies of gentle saves is there and needed") {
  // Of each job its stream, from the third job on its buffer, its copies after its kernel.
  constexpr std::uint64_t kNumOrders = 13;
  CHECK(are_jobs_right(SlowStep::kKernel, 0, kNumOrders));
  CHECK(are_jobs_right(SlowStep::kCopy, 0, kNumOrders));
  // The stream's order has tests of its own.
  for (const std::uint64_t missing : {2, 4, 6, 7, 9, 10, 12, 13}) {
    INFO("missing: ", missing);
    CHECK_FALSE((are_jobs_right(SlowStep::kKernel, missing, kNumOrders) &&
                 are_jobs_right(SlowStep::kCopy, missing, kNumOrders)));
  }
}

}  // namespace
}  // namespace kvtier::testing
