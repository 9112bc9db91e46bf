// What users of others suffered from, on the doubles: page-locking that is refused (F4, E6), memory
// that is one (F10), no GPU or no fast way to it (E11). F3 is in page_locked_ranges_test.cc.
#include <doctest/doctest.h>

#include <algorithm>

#include "device/cuda_device.h"
#include "device/fake_cuda_driver.h"
#include "transfer/transfer_world.h"

namespace kvtier::testing {
namespace {

using namespace transfer;

constexpr unsigned char kImage[4] = {1, 2, 3, 4};

void check_there_and_back(TransferWorld& world, TransferMethod method) {
  world.write_block(3, world.payload(1));
  const TransferJobId saving = world.submit(kSave, {{3, 5, 1}}, method);
  world.settle();
  CHECK(world.take(saving).status.is_ok());
  const TransferJobId loading = world.submit(kLoad, {{9, 5, 1}}, method);
  world.settle();
  CHECK(world.take(loading).status.is_ok());
  CHECK(are_equal(world.read_block(9), world.payload(1)));
}

TEST_CASE("F4: a quota of page-locked memory below the arena costs speed, no bytes") {
  TransferWorld world(kPlainShape);
  const std::uint64_t quota_bytes = world.arena.size() / 4;
  world.host.set_page_lock_limit_bytes(quota_bytes);
  CHECK(world.engine->add_host_memory(world.arena).code() == StatusCode::kExhausted);
  CHECK(world.engine->stats().page_locked_bytes == 0);
  // A refusal poisons nothing after it.
  CHECK(world.host.failure().is_ok());
  const auto ring = std::span(world.arena).first(quota_bytes);
  CHECK(world.engine->add_host_memory(ring).is_ok());
  CHECK(world.engine->stats().page_locked_bytes == quota_bytes);
  for (const TransferMethod method : kAllMethods) check_there_and_back(world, method);
  world.engine->remove_host_memory(ring);
  CHECK(world.engine->stats().page_locked_bytes == 0);
}

TEST_CASE("F4, E6: a driver that refuses to page-lock stays usable and says what it refused") {
  FakeCudaDriver fake;
  fake.driver().host_register = [](void*, std::size_t, unsigned) { return kCudaErrorOutOfMemory; };
  const auto device = std::move(make_cuda_device(fake.driver(), 0, kImage)).value();
  std::vector<std::byte> memory(8192);
  const Status refused = device->page_lock(memory);
  CHECK(refused.code() == StatusCode::kExhausted);
  CHECK(refused.message().find("cannot page-lock memory") != std::string::npos);
  CHECK(device->failure().is_ok());
  const LaneId lane = device->create_lane(LanePriority::kLoad).value();
  std::vector<std::byte> target(8192, std::byte{3});
  const CopyPiece piece{memory.data(), target.data(), 8192};
  CHECK(device->submit_copies(lane, {&piece, 1}).is_ok());
  CHECK(target == memory);
}

TEST_CASE("F10: where memory is one, nothing is staged and blocks are moved once") {
  TransferWorld world(kPlainShape, {16, 16, 64 << 10, true});
  CHECK(world.engine->device_info().is_memory_unified);
  CHECK(world.engine->stats().staging_bytes == 0);
  const std::uint64_t before = world.host.submitted_bytes();
  check_there_and_back(world, TransferMethod::kAuto);
  const TransferStats stats = world.engine->stats();
  const auto zero_copy = static_cast<std::size_t>(TransferMethod::kZeroCopy);
  CHECK(stats.jobs[static_cast<std::size_t>(kSave)][zero_copy] == 1);
  CHECK(stats.jobs[static_cast<std::size_t>(kLoad)][zero_copy] == 1);
  CHECK(stats.moved_bytes[static_cast<std::size_t>(kSave)][zero_copy] == world.shape.block_bytes());
  // By the kernel alone: no copy before or after it.
  CHECK(world.host.submitted_bytes() == before);
}

TEST_CASE("E11: no driver is said at once, by the name of what is missing") {
  const auto missing = load_cuda_driver("libkvtier_no_such_driver.so.1");
  REQUIRE_FALSE(missing.is_ok());
  CHECK(missing.status().code() == StatusCode::kUnsupported);
  CHECK(missing.status().message().find("libkvtier_no_such_driver.so.1") != std::string::npos);
}

TEST_CASE("E11: kernels that do not load leave a slower way, and the engine's note says so") {
  FakeCudaDriver fake;
  FakeCudaDriver::state().module_result = 209;
  const auto device = std::move(make_cuda_device(fake.driver(), 0, kImage)).value();
  SystemClock clock;
  TransferOptions options;
  options.has_thread = false;
  auto engine = std::move(TransferEngine::create(*device, clock, options)).value();
  CHECK(engine->note().find("result=209") != std::string::npos);
  CHECK(engine->note().find("kernels") != std::string::npos);
  CHECK_FALSE(engine->device_info().has_kernels);
}

}  // namespace
}  // namespace kvtier::testing
