// The CUDA device over a driver of the tests' own: that its ops reach the kernels, what it does
// without a driver or kernels, and that a lost context ends it. A real GPU is in tests/gpu.
#include "device/cuda_device.h"

#include <doctest/doctest.h>

#include <memory>

#include "device/block_copy_conformance.h"
#include "device/fake_cuda_driver.h"
#include "testing/without_leak_check.h"

namespace kvtier::testing {
namespace {

constexpr unsigned char kImage[4] = {1, 2, 3, 4};

std::unique_ptr<Device> make_device(FakeCudaDriver& fake,
                                    std::span<const unsigned char> image = kImage) {
  auto device = make_cuda_device(fake.driver(), 0, image);
  REQUIRE_MESSAGE(device.is_ok(), device.status().to_string());
  return std::move(device).value();
}

class FakeCudaWorld final : public BlockCopyWorld {
 public:
  ~FakeCudaWorld() override {
    device_.reset();
    CHECK(FakeCudaDriver::state().num_contexts == 0);
    CHECK(FakeCudaDriver::state().context_depth == 0);
  }
  std::span<std::byte> make_memory(std::size_t length_bytes) override {
    return {device_->allocate(length_bytes).value(), length_bytes};
  }
  std::span<std::byte> make_page_locked(std::size_t length_bytes) override {
    std::byte* memory = device_->allocate_page_locked(length_bytes).value();
    std::fill_n(memory, length_bytes, std::byte{0});
    return {memory, length_bytes};
  }
  void write(std::span<std::byte> memory, std::span<const std::byte> bytes) override {
    std::copy(bytes.begin(), bytes.end(), memory.begin());
  }
  std::vector<std::byte> read(std::span<const std::byte> memory) override {
    return {memory.begin(), memory.end()};
  }
  void run(const FragmentTable& table, BlockCopy op) override {
    op.table_id = device_->create_fragment_table(table).value();
    const Status submitted = device_->submit_block_copy(lane_, op);
    REQUIRE_MESSAGE(submitted.is_ok(), submitted.to_string());
    device_->destroy_fragment_table(op.table_id);
  }

 private:
  FakeCudaDriver fake_;
  std::unique_ptr<Device> device_ = make_device(fake_);
  LaneId lane_ = device_->create_lane(LanePriority::kLoad).value();
};

TEST_CASE("the CUDA device hands kernels what they need for blocks of every shape") {
  check_block_copy_conformance([] { return std::make_unique<FakeCudaWorld>(); });
}

TEST_CASE("without a driver the reason is said and nothing else happens") {
  const auto missing = load_cuda_driver("libkvtier_no_such_driver.so.1");
  REQUIRE_FALSE(missing.is_ok());
  CHECK(missing.status().code() == StatusCode::kUnsupported);
  CHECK(missing.status().message().find("libkvtier_no_such_driver") != std::string::npos);
  const auto foreign = load_cuda_driver("libm.so.6");
  REQUIRE_FALSE(foreign.is_ok());
  CHECK(foreign.status().message().find("has no cuInit") != std::string::npos);
}

TEST_CASE("a driver that is too old, broken or without devices is refused") {
  FakeCudaDriver fake;
  CHECK(start_cuda_driver(fake.driver()).is_ok());
  FakeCudaDriver::state().version = 11080;
  CHECK(start_cuda_driver(fake.driver()).message().find("version=11080") != std::string::npos);
  FakeCudaDriver::state().version = 13000;
  FakeCudaDriver::state().init_result = 100;
  CHECK(start_cuda_driver(fake.driver()).message().find("result=100") != std::string::npos);
  FakeCudaDriver::state().init_result = kCudaSuccess;
  FakeCudaDriver::state().num_devices = 0;
  CHECK(start_cuda_driver(fake.driver()).code() == StatusCode::kUnsupported);
  CHECK(make_cuda_device(fake.driver(), 0, kImage).status().code() == StatusCode::kUnsupported);
}

TEST_CASE("F10: an integrated GPU, or one that sees all of the host's memory, has one memory") {
  FakeCudaDriver fake;
  CHECK_FALSE(make_device(fake)->info().is_memory_unified);
  for (const int attribute : {18, 100}) {
    INFO("attribute: ", attribute);
    FakeCudaDriver::state().attributes = {19, 41, 91, attribute};
    CHECK(make_device(fake)->info().is_memory_unified);
    CHECK(make_device(fake)->info().is_integrated == (attribute == 18));
  }
}

TEST_CASE("kernels that do not load leave the copy engine, and the note says so") {
  FakeCudaDriver fake;
  CHECK(make_device(fake, {})->info().note.find("nvcc") != std::string::npos);
  FakeCudaDriver::state().module_result = 222;
  const std::unique_ptr<Device> device = make_device(fake);
  CHECK_FALSE(device->info().has_kernels);
  CHECK(device->info().note.find("result=222") != std::string::npos);
  const LaneId lane = device->create_lane(LanePriority::kSave).value();
  CHECK(device->submit_block_copy(lane, {}).code() == StatusCode::kUnsupported);
  const auto source = make_payload({1, 0}, 100);
  std::vector<std::byte> target(100);
  const CopyPiece piece{source.data(), target.data(), 100};
  CHECK(device->submit_copies(lane, {&piece, 1}).is_ok());
  CHECK(source == target);
}

TEST_CASE("each leaf is taken once however many a warp takes") {
  FakeCudaWorld world;
  constexpr std::uint64_t kLeavesMax = 600;
  const std::uint64_t block_bytes = kLeavesMax * kLeafBytes;
  const auto blocks = world.make_memory(block_bytes);
  world.write(blocks, make_payload({1, 0}, block_bytes));
  std::vector<std::uint64_t> wanted(kLeavesMax);
  digest_leaves(blocks, wanted);
  const Fragment fragment{blocks.data(), block_bytes, block_bytes};
  const auto table = FragmentTable::create({fragment}, {&block_bytes, 1}, 1);
  REQUIRE(table.is_ok());
  const auto target = world.make_memory(block_bytes);
  const auto digests = world.make_page_locked((kLeavesMax + 1) * sizeof(std::uint64_t));
  const BlockPlace place{0, target.data()};
  BlockCopy op;
  op.places = {&place, 1};
  op.digests = reinterpret_cast<std::uint64_t*>(digests.data());
  // A leaf a warp, one more, a whole turn of most, more turns than one.
  for (const std::uint32_t num_leaves : {16, 17, 100, 256, 257, 600}) {
    INFO("num_leaves: ", num_leaves);
    std::fill(target.begin(), target.end(), std::byte{0});
    std::fill(digests.begin(), digests.end(), std::byte{0});
    op.num_leaves = num_leaves;
    world.run(table.value(), op);
    const std::uint64_t num_bytes = num_leaves * kLeafBytes;
    CHECK(are_equal(target.first(num_bytes), blocks.first(num_bytes)));
    CHECK(std::equal(wanted.begin(), wanted.begin() + num_leaves, op.digests));
    CHECK(op.digests[num_leaves] == 0);
  }
}

TEST_CASE("many pieces go in one batch, or one by one where the driver takes no batch") {
  FakeCudaDriver fake;
  const std::unique_ptr<Device> device = make_device(fake);
  const LaneId lane = device->create_lane(LanePriority::kSave).value();
  const auto source = make_payload({1, 0}, 4000);
  std::vector<std::byte> target(4000);
  const std::vector<CopyPiece> pieces = {
      {source.data(), target.data(), 1000}, {}, {source.data() + 1000, target.data() + 1000, 3000}};
  auto& state = FakeCudaDriver::state();
  const std::size_t num_copies_before = state.num_copies;
  REQUIRE(device->submit_copies(lane, pieces).is_ok());
  CHECK(state.num_batches == 1);
  CHECK(state.num_copies == num_copies_before);
  CHECK(source == target);
  target.assign(4000, std::byte{0});
  state.batch_result = kCudaErrorNotSupported;
  REQUIRE(device->submit_copies(lane, pieces).is_ok());
  CHECK(source == target);
  target.assign(4000, std::byte{0});
  fake.driver().copy_batch = nullptr;
  REQUIRE(device->submit_copies(lane, pieces).is_ok());
  CHECK(source == target);
  CHECK(state.num_copies == num_copies_before + 4);
  CHECK(device->failure().is_ok());
}

TEST_CASE("streams that are another device's or being captured are refused") {
  FakeCudaDriver fake;
  const std::unique_ptr<Device> device = make_device(fake);
  const Event event = device->create_event().value();
  auto& state = FakeCudaDriver::state();
  state.foreign_stream = reinterpret_cast<CudaStream>(0x77777);
  CHECK(device->record_event(event, {0x88888}).is_ok());
  CHECK(device->record_event(event, {0x77777}).message().find("another device") !=
        std::string::npos);
  state.capture_status = 1;
  const Status captured = device->record_event(event, {0});
  CHECK(captured.code() == StatusCode::kInvalidArgument);
  CHECK(captured.message().find("captured") != std::string::npos);
  CHECK(device->failure().is_ok());
}

TEST_CASE("a number at which no stream can lie is refused, not followed") {
  FakeCudaDriver fake;
  const std::unique_ptr<Device> device = make_device(fake);
  const Event event = device->create_event().value();
  for (int round = 0; round < 2; ++round) {
    const Status refused = device->record_event(event, {12345});
    CHECK(refused.code() == StatusCode::kInvalidArgument);
    CHECK(refused.message().find("stream=12345") != std::string::npos);
    CHECK(device->record_event(event, {0x88888}).is_ok());
  }
}

TEST_CASE("a lost context ends the device for good, a refused call does not") {
  FakeCudaDriver fake;
  const std::unique_ptr<Device> device = make_device(fake);
  CHECK(device->allocate(1ull << 50).status().code() == StatusCode::kExhausted);
  CHECK(device->failure().is_ok());
  const Event event = device->create_event().value();
  REQUIRE(device->record_event(event, {0}).is_ok());
  FakeCudaDriver::state().query_result = 700;
  CHECK(device->query_event(event).status().message().find("device lost") != std::string::npos);
  FakeCudaDriver::state().query_result = kCudaSuccess;
  CHECK(device->failure().message().find("result=700") != std::string::npos);
  CHECK(device->query_event(event).status().code() == StatusCode::kIoError);
  CHECK(device->allocate(100).status().code() == StatusCode::kIoError);
}

TEST_CASE("a stream whose capture begins while an event is recorded is refused") {
  FakeCudaDriver fake;
  const std::unique_ptr<Device> device = make_device(fake);
  const Event event = device->create_event().value();
  auto& state = FakeCudaDriver::state();
  state.num_capture_asks_until = 1;
  CHECK(device->record_event(event, {0}).message().find("captured") != std::string::npos);
  // It stands for nothing, so nobody may wait for it.
  CHECK(device->query_event(event).status().code() == StatusCode::kInvalidArgument);
  state.capture_status = 0;
  REQUIRE(device->record_event(event, {0}).is_ok());
  state.num_capture_asks_until = 1;
  CHECK(device->order_stream_after({0}, event).code() == StatusCode::kInvalidArgument);
}

TEST_CASE("nothing is called without the device's context") {
  FakeCudaDriver fake;
  const std::unique_ptr<Device> device = make_device(fake);
  const LaneId lane = device->create_lane(LanePriority::kSave).value();
  const Event event = device->create_event().value();
  REQUIRE(device->record_event(event, {0}).is_ok());
  auto& state = FakeCudaDriver::state();
  const std::size_t num_copies = state.num_copies;
  state.push_result = 3;
  std::vector<std::byte> bytes(200);
  const CopyPiece piece{bytes.data(), bytes.data() + 100, 100};
  for (const Status& refused :
       {device->submit_copies(lane, {&piece, 1}), device->record_event(event, {0}),
        device->order_stream_after({0}, event), device->record_lane(lane, event),
        device->order_lane_after(lane, event), device->query_event(event).status(),
        device->allocate(100).status(), device->allocate_page_locked(100).status(),
        device->page_lock(bytes), device->identify_memory(bytes.data()).status(),
        device->create_lane(LanePriority::kLoad).status()}) {
    CHECK(refused.code() == StatusCode::kIoError);
    CHECK(refused.message().find("context") != std::string::npos);
  }
  CHECK(state.num_copies == num_copies);
  CHECK(device->failure().is_ok());
  state.push_result = kCudaSuccess;
  CHECK(device->submit_copies(lane, {&piece, 1}).is_ok());
}

TEST_CASE("an error of the driver is not taken for memory that was freed") {
  FakeCudaDriver fake;
  const std::unique_ptr<Device> device = make_device(fake);
  std::byte* memory = device->allocate(4096).value();
  REQUIRE(device->identify_memory(memory).is_ok());
  FakeCudaDriver::state().pointer_result = 3;
  CHECK(device->identify_memory(memory).status().code() == StatusCode::kIoError);
  CHECK(device->failure().is_ok());
  FakeCudaDriver::state().pointer_result = 700;
  CHECK(device->identify_memory(memory).status().message().find("device lost") !=
        std::string::npos);
  CHECK_FALSE(device->failure().is_ok());
}

TEST_CASE("memory is the device's only when all of it is") {
  FakeCudaDriver fake;
  const std::unique_ptr<Device> device = make_device(fake);
  std::byte* memory = device->allocate(3 * 4096).value();
  const std::uint64_t identity = device->identify_memory(memory).value();
  CHECK(device->identify_memory(memory, 3 * 4096).value() == identity);
  CHECK(device->identify_memory(memory + 4096, 2 * 4096).value() == identity);
  const Status refused = device->identify_memory(memory, 3 * 4096 + 1).status();
  CHECK(refused.code() == StatusCode::kInvalidArgument);
  CHECK(refused.message().find("known_bytes=12288 need_bytes=12289") != std::string::npos);
  // Two mappings that follow each other, as an allocator makes them that grows its memory.
  auto& allocations = FakeCudaDriver::state().memory;
  const auto whole = allocations.at(memory);
  allocations[memory].num_bytes = 4096;
  allocations[memory + 4096] = {2 * 4096, true, 77};
  CHECK(device->identify_memory(memory, 3 * 4096).value() == identity);
  allocations[memory + 4096].is_device = false;
  allocations[memory + 4096].buffer_id = 78;
  CHECK(device->identify_memory(memory, 3 * 4096).status().code() == StatusCode::kInvalidArgument);
  allocations.erase(memory + 4096);
  allocations[memory] = whole;
}

TEST_CASE("registered memory with an address of its own is left to plain copies") {
  FakeCudaDriver fake;
  FakeCudaDriver::state().attributes = {19, 41};
  const std::unique_ptr<Device> device = make_device(fake);
  CHECK(device->info().can_kernels_reach_host);
  CHECK_FALSE(device->info().can_kernels_reach_registered);
  const LaneId lane = device->create_lane(LanePriority::kSave).value();
  const auto source = make_payload({1, 0}, 4000);
  std::vector<std::byte> target(4000);
  const std::vector<CopyPiece> pieces = {{source.data(), target.data(), 1000},
                                         {source.data() + 1000, target.data() + 1000, 3000}};
  REQUIRE(device->submit_copies(lane, pieces).is_ok());
  CHECK(FakeCudaDriver::state().num_batches == 0);
  CHECK(source == target);
}

TEST_CASE("kernels that reach no host memory are left alone, and the note says so") {
  FakeCudaDriver fake;
  FakeCudaDriver::state().attributes = {19, 91};
  const std::unique_ptr<Device> device = make_device(fake);
  CHECK_FALSE(device->info().has_kernels);
  CHECK_FALSE(device->info().can_kernels_reach_registered);
  CHECK(device->info().note.find("reach host memory") != std::string::npos);
}

TEST_CASE("F9: a device says where on the PCI bus it is, if its driver does") {
  FakeCudaDriver fake;
  CHECK(make_device(fake)->info().pci_address.empty());
  FakeCudaDriver::state().attributes = {19, 33, 41, 50, 91};
  CHECK(make_device(fake)->info().pci_address == "0001:01:00.0");
}

TEST_CASE("errors that end the context are told from those that do not") {
  for (const CudaResult lost : {4, 214, 700, 719, 805, 810, 999}) CHECK(is_cuda_context_lost(lost));
  // Out of memory, no compiler for PTX, not ready, already registered, a capture's.
  for (const CudaResult harmless : {1, 2, 221, 600, 712, 900}) {
    CHECK_FALSE(is_cuda_context_lost(harmless));
  }
}

TEST_CASE("a device whose lanes are busy is left as it is") {
  const WithoutLeakCheck without_leak_check;
  FakeCudaDriver fake;
  std::unique_ptr<Device> device = make_device(fake);
  (void)device->create_lane(LanePriority::kLoad);
  FakeCudaDriver::state().is_busy = true;
  device.reset();
  CHECK(FakeCudaDriver::state().num_contexts == 1);
}

}  // namespace
}  // namespace kvtier::testing
