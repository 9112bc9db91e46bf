// The transfer engine over the CUDA device's own code and a driver of the tests', kernels included.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>

#include "device/block_tables.h"
#include "device/cuda_device.h"
#include "device/fake_cuda_driver.h"
#include "transfer/transfer_engine.h"

namespace kvtier::testing {
namespace {

using namespace transfer;

constexpr unsigned char kImage[4] = {1, 2, 3, 4};
constexpr std::uint64_t kBlocks = 6;

/// A block of two fragments, six of them, in the driver's device memory.
class FakeCudaTransfer {
 public:
  explicit FakeCudaTransfer(std::span<const unsigned char> image = kImage)
      : device(std::move(make_cuda_device(fake.driver(), 0, image)).value()),
        memory(device->allocate(kBlocks * kBlockBytes).value(), kBlocks * kBlockBytes),
        arena(device->allocate_page_locked(kBlocks * kBlockBytes).value(), kBlocks * kBlockBytes) {
    TransferOptions options;
    options.has_thread = false;
    options.is_calibrated = false;
    options.chunk_bytes = 64 << 10;
    engine = std::move(TransferEngine::create(*device, clock, options)).value();
    engine->add_page_locked_memory(arena);
    const layout::TensorPlace tensors[2] = {
        {memory.data(), kBlocks * kFirstBytes},
        {memory.data() + kBlocks * kFirstBytes, kBlocks * (kBlockBytes - kFirstBytes)}};
    const layout::FragmentPlace fragments[2] = {
        {0, 0, kFirstBytes, kFirstBytes},
        {1, 0, kBlockBytes - kFirstBytes, kBlockBytes - kFirstBytes}};
    const std::uint64_t part_bytes = kBlockBytes;
    attachment_id = engine->attach(tensors, fragments, {&part_bytes, 1}).value();
  }
  ~FakeCudaTransfer() {
    engine.reset();
    device->deallocate(memory.data());
    device->deallocate_page_locked(arena.data());
  }

  static std::vector<std::byte> payload(std::uint64_t block) {
    return make_payload({block + 1, 0}, kBlockBytes);
  }
  void write_blocks() {
    for (std::uint64_t block = 0; block < kBlocks; ++block) {
      const auto bytes = payload(block);
      std::copy_n(bytes.begin(), kFirstBytes, memory.data() + block * kFirstBytes);
      std::copy_n(bytes.begin() + kFirstBytes, kBlockBytes - kFirstBytes,
                  memory.data() + kBlocks * kFirstBytes + block * (kBlockBytes - kFirstBytes));
    }
  }
  TransferResult run(TransferDirection direction, TransferMethod method,
                     const std::vector<std::uint64_t>& checksums) {
    std::vector<std::int64_t> block_ids;
    std::vector<std::byte*> slots;
    for (std::uint64_t block = 0; block < kBlocks; ++block) {
      block_ids.push_back(static_cast<std::int64_t>(block));
      slots.push_back(arena.data() + block * kBlockBytes);
    }
    const std::vector<ChecksumSeed> seeds(kBlocks);
    TransferRequest request;
    request.direction = direction;
    request.attachment_id = attachment_id;
    request.block_ids = block_ids;
    request.slots = slots;
    request.seeds = seeds;
    request.checksums = checksums;
    request.method = method;
    const TransferJobId job_id = engine->submit(request).value();
    for (int turn = 0; turn < 20; ++turn) engine->advance();
    return std::move(engine->take(job_id)).value();
  }

  static constexpr std::uint64_t kFirstBytes = 20000;
  static constexpr std::uint64_t kBlockBytes = 36400;
  FakeCudaDriver fake;
  SystemClock clock;
  std::unique_ptr<Device> device;
  std::span<std::byte> memory;
  std::span<std::byte> arena;
  std::unique_ptr<TransferEngine> engine;
  AttachmentId attachment_id = 0;
};

void check_there_and_back(FakeCudaTransfer& world, TransferMethod method) {
  INFO("method: ", method_name(method));
  world.write_blocks();
  std::fill(world.arena.begin(), world.arena.end(), std::byte{0xa5});
  const TransferResult saved = world.run(TransferDirection::kSave, method, {});
  REQUIRE_MESSAGE(saved.status.is_ok(), saved.status.to_string());
  for (std::uint64_t block = 0; block < kBlocks; ++block) {
    const auto bytes = FakeCudaTransfer::payload(block);
    CHECK(saved.checksums[block] == checksum_part(bytes, ChecksumSeed{}));
    CHECK(are_equal(world.arena.subspan(block * bytes.size(), bytes.size()), bytes));
  }
  const std::vector<std::byte> before(world.memory.begin(), world.memory.end());
  std::fill(world.memory.begin(), world.memory.end(), std::byte{0xa5});
  CHECK(world.run(TransferDirection::kLoad, method, saved.checksums).status.is_ok());
  CHECK(are_equal(world.memory, before));
  world.arena[3 * FakeCudaTransfer::kBlockBytes + 77] ^= std::byte{1};
  const TransferResult bad = world.run(TransferDirection::kLoad, method, saved.checksums);
  CHECK(bad.undefined_block_ids == std::vector<std::int64_t>{3});
}

TEST_CASE("blocks go through the CUDA device's code and kernels by every method") {
  FakeCudaTransfer world;
  for (const TransferMethod method :
       {TransferMethod::kCopyEngine, TransferMethod::kStaged, TransferMethod::kZeroCopy}) {
    check_there_and_back(world, method);
  }
}

TEST_CASE("without kernels the copy engine does all, and its bytes are still checked") {
  FakeCudaTransfer world(std::span<const unsigned char>{});
  check_there_and_back(world, TransferMethod::kAuto);
  CHECK(world.engine->stats().staging_bytes == 0);
  CHECK_FALSE(world.engine->note().empty());
}

TEST_CASE("a kernel that faults ends the engine, and its jobs say so") {
  FakeCudaTransfer world;
  world.write_blocks();
  FakeCudaDriver::state().launch_result = 719;
  const TransferResult failed =
      world.run(TransferDirection::kLoad, TransferMethod::kStaged, {0, 0, 0, 0, 0, 0});
  CHECK(failed.status.code() == StatusCode::kIoError);
  CHECK(failed.undefined_block_ids.size() == kBlocks);
  FakeCudaDriver::state().launch_result = kCudaSuccess;
  TransferRequest request;
  const std::int64_t block_id = 0;
  std::byte* slot = world.arena.data();
  request.attachment_id = world.attachment_id;
  request.block_ids = {&block_id, 1};
  request.slots = {&slot, 1};
  CHECK(world.engine->submit(request).status().code() == StatusCode::kIoError);
}

TEST_CASE("slots that kernels cannot reach are served by other methods") {
  FakeCudaTransfer world;
  world.engine->remove_host_memory(world.arena);
  world.write_blocks();
  CHECK(world.run(TransferDirection::kSave, TransferMethod::kZeroCopy, {}).status.code() ==
        StatusCode::kUnsupported);
  check_there_and_back(world, TransferMethod::kAuto);
}

}  // namespace
}  // namespace kvtier::testing
