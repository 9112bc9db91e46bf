// The CUDA device on a real GPU: the contract of every Device, the kernels, and what it refuses.
#include "device/cuda_device.h"

#include <doctest/doctest.h>

#include "device/block_copy_conformance.h"
#include "device/device_conformance.h"
#include "gpu_bench.h"

namespace kvtier::testing {
namespace {

// Each has a device of its own, on the one context of the process.
class CudaWorld final : public DeviceWorld, public BlockCopyWorld {
 public:
  explicit CudaWorld(GpuBench& gpu_bench)
      : bench_(gpu_bench), device_(std::move(open_cuda_device(0)).value()) {}
  ~CudaWorld() override { bench_.end_late_work(); }

  Device& device() override { return *device_; }
  std::span<std::byte> make_memory(std::size_t length_bytes) override {
    return bench_.make_memory(length_bytes);
  }
  std::span<std::byte> make_page_locked(std::size_t length_bytes) override {
    return bench_.make_page_locked(length_bytes);
  }
  void write(std::span<std::byte> memory, std::span<const std::byte> bytes) override {
    bench_.write(memory, bytes);
  }
  std::vector<std::byte> read(std::span<const std::byte> memory) override {
    return bench_.read(memory);
  }
  void write_late(StreamId stream, std::span<std::byte> memory,
                  std::vector<std::byte> bytes) override {
    bench_.write_late(stream, memory, std::move(bytes));
  }
  void end_late_work() override { bench_.end_late_work(); }
  StreamId make_stream() override { return bench_.make_stream(); }
  void settle() override { bench_.let_pass(2 * kNsPerMs); }
  void run(const FragmentTable& table, BlockCopy op) override {
    if (lane_.empty()) lane_.push_back(make_lane());
    op.table_id = device_->create_fragment_table(table).value();
    const Status submitted = device_->submit_block_copy(lane_[0], op);
    REQUIRE_MESSAGE(submitted.is_ok(), submitted.to_string());
    const Event done = make_event();
    REQUIRE(device_->record_lane(lane_[0], done).is_ok());
    const Status ended = device_->wait_event(done, kNeverNs);
    REQUIRE_MESSAGE(ended.is_ok(), ended.to_string());
    device_->destroy_event(done);
    device_->destroy_fragment_table(op.table_id);
  }

 private:
  GpuBench& bench_;
  std::unique_ptr<Device> device_;
  std::vector<LaneId> lane_;
};

TEST_CASE("the CUDA device keeps the contract") {
  KVTIER_GPU_OR_SKIP(bench);
  MESSAGE(bench->device().info().name, ": ", bench->device().info().identity, " ",
          bench->device().info().note);
  check_device_conformance([bench] { return std::make_unique<CudaWorld>(*bench); });
}

TEST_CASE("kernels on the GPU move and hash blocks of every shape") {
  KVTIER_GPU_OR_SKIP(bench);
  REQUIRE(bench->device().info().has_kernels);
  check_block_copy_conformance([bench] { return std::make_unique<CudaWorld>(*bench); });
}

TEST_CASE("page-locked memory is reached by copies and kernels, and can be unlocked") {
  KVTIER_GPU_OR_SKIP(bench);
  CudaWorld world(*bench);
  AlignedBytes host(1 << 20);
  const Status locked = world.device().page_lock(host.span());
  REQUIRE_MESSAGE(locked.is_ok(), locked.to_string());
  CHECK_FALSE(world.device().page_lock(host.span()).is_ok());
  const BlockShape shape{"one", {1 << 20}, {}, 0, 0};
  const auto memory = bench->make_memory(shape.memory_bytes(1));
  bench->write(memory, make_payload({1, 0}, 1 << 20));
  const BlockPlace place{0, host.span().data()};
  BlockCopy op;
  op.places = {&place, 1};
  op.num_leaves = 256;
  op.num_ctas = 8;
  world.run(make_table(shape, memory, 1), op);
  CHECK(are_equal(host.span(), make_payload({1, 0}, 1 << 20)));
  world.device().page_unlock(host.span().data());
  CHECK(world.device().failure().is_ok());
}

TEST_CASE("memory that is freed, of the host or not there is refused and nothing is lost") {
  KVTIER_GPU_OR_SKIP(bench);
  CudaWorld world(*bench);
  Device& device = world.device();
  std::vector<std::byte> host(4096);
  CHECK(device.identify_memory(host.data()).status().code() == StatusCode::kInvalidArgument);
  CHECK(device.identify_memory(nullptr).status().code() == StatusCode::kInvalidArgument);
  std::byte* memory = device.allocate(64 << 20).value();
  const std::uint64_t identity = device.identify_memory(memory).value();
  CHECK(identity != 0);
  CHECK(device.identify_memory(memory + (32 << 20)).value() == identity);
  device.deallocate(memory);
  const auto freed = device.identify_memory(memory);
  CHECK((!freed.is_ok() || freed.value() != identity));
  CHECK_FALSE(device.allocate(1ull << 50).is_ok());
  CHECK(device.failure().is_ok());
  CHECK_FALSE(open_cuda_device(99).is_ok());
}

}  // namespace
}  // namespace kvtier::testing
