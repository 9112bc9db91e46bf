// The reference device keeps the contract, copies at its scripted times, and fails as scripted.
#include "device/host_device.h"

#include <doctest/doctest.h>

#include "device/device_conformance.h"
#include "testing/sim_world.h"

namespace kvtier::testing {
namespace {

class HostDeviceWorld final : public DeviceWorld {
 public:
  Device& device() override { return host; }
  std::span<std::byte> make_memory(std::size_t length_bytes) override {
    memory_.push_back(std::make_unique<std::vector<std::byte>>(length_bytes));
    return *memory_.back();
  }
  std::span<std::byte> make_page_locked(std::size_t length_bytes) override {
    return make_memory(length_bytes);
  }
  void write(std::span<std::byte> memory, std::span<const std::byte> bytes) override {
    std::copy(bytes.begin(), bytes.end(), memory.begin());
  }
  std::vector<std::byte> read(std::span<const std::byte> memory) override {
    return {memory.begin(), memory.end()};
  }
  void write_late(StreamId stream, std::span<std::byte> memory,
                  std::vector<std::byte> bytes) override {
    host.submit_kernel(stream, kLateNs, [memory, bytes = std::move(bytes)] {
      std::copy(bytes.begin(), bytes.end(), memory.begin());
    });
  }
  void end_late_work() override { clock.advance_ns(kLateNs); }
  StreamId make_stream() override { return {++last_stream_id_}; }
  void settle() override { host.run_due(); }

  SimClock clock;
  HostDevice host{clock};

 private:
  static constexpr TimeNs kLateNs = 5 * kNsPerMs;
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory_;
  std::uint64_t last_stream_id_ = 0;
};

TEST_CASE("the host device keeps the contract") {
  check_device_conformance([] { return std::make_unique<HostDeviceWorld>(); });
}

TEST_CASE("a copy arrives its delay after the ready event and not before") {
  HostDeviceWorld world;
  const auto source = world.make_memory(100);
  const auto target = world.make_memory(100);
  fill_payload({1, 0}, 0, source);
  const Event ready = world.recorded_event({1});
  world.host.set_copy_delay_ns(1000);
  const TimeNs start_ns = world.clock.now_ns();
  const Event done = world.copy(world.make_lane(), {piece_of(source, target)}, ready);
  CHECK(world.host.next_due_ns() == start_ns + 1000);
  world.clock.advance_ns(999);
  CHECK(world.host.run_due() == 0);
  CHECK_FALSE(world.is_complete(done));
  world.clock.advance_ns(1);
  // Time alone copies nothing: the device has to be stepped.
  CHECK_FALSE(world.is_complete(done));
  CHECK(world.host.run_due() == 1);
  CHECK(world.is_complete(done));
  CHECK(are_equal(source, target));
  CHECK(world.host.next_due_ns() == kNeverNs);
}

TEST_CASE("a copy behind a kernel that never ends is never made") {
  HostDeviceWorld world;
  const auto source = world.make_memory(100);
  const auto target = world.make_memory(100);
  world.host.submit_kernel({7}, kNeverNs, [] {});
  const Event ready = world.recorded_event({7});
  world.host.set_copy_delay_ns(kNsPerS);
  const Event done = world.copy(world.make_lane(), {piece_of(source, target)}, ready);
  world.clock.advance_ns(kNsPerS * 1000);
  CHECK(world.host.run_due() == 0);
  CHECK_FALSE(world.is_complete(done));
}

TEST_CASE("lanes run beside each other and each in order") {
  HostDeviceWorld world;
  const auto source = world.make_memory(8);
  const auto target = world.make_memory(8);
  const LaneId first = world.make_lane();
  const LaneId second = world.make_lane();
  const Event ready = world.recorded_event({1});
  world.host.set_copy_delay_ns(100);
  const Event one = world.copy(first, {piece_of(source, target)}, ready);
  const Event two = world.copy(first, {piece_of(source, target)}, ready);
  const Event beside = world.copy(second, {piece_of(source, target)}, ready);
  world.clock.advance_ns(100);
  CHECK(world.host.run_due() == 2);
  CHECK(world.is_complete(one));
  CHECK(world.is_complete(beside));
  CHECK_FALSE(world.is_complete(two));
  world.clock.advance_ns(100);
  CHECK(world.host.run_due() == 1);
  CHECK(world.is_complete(two));
}

TEST_CASE("a failing copy fails the device for good and nothing is copied after it") {
  HostDeviceWorld world;
  const auto source = world.make_memory(4000);
  const auto first = world.make_memory(4000);
  const auto second = world.make_memory(4000);
  const auto third = world.make_memory(4000);
  fill_payload({1, 0}, 0, source);
  const LaneId lane = world.make_lane();
  const Event ready = world.recorded_event({1});
  world.host.fail_copy_after(1, Status(StatusCode::kIoError, "as asked"));
  world.copy(lane, {piece_of(source, first)}, ready);
  const Event failing = world.copy(lane, {piece_of(source, second)}, ready);
  world.copy(lane, {piece_of(source, third)}, ready);
  CHECK(world.host.failure().is_ok());
  CHECK(world.host.run_due() == 2);
  CHECK(are_equal(source, first));
  CHECK_FALSE(are_equal(source, second));
  CHECK(are_equal(third, std::vector<std::byte>(4000)));
  CHECK(world.host.failure().message() == "as asked");
  CHECK(world.host.query_event(failing).status().message() == "as asked");
  CHECK(world.host.wait_event(failing, kNeverNs).code() == StatusCode::kIoError);
  CHECK(world.host.create_event().status().code() == StatusCode::kIoError);
  CHECK(world.host.record_event(ready, {}).code() == StatusCode::kIoError);
  CHECK(world.host.submit_copies(lane, {}).code() == StatusCode::kIoError);
  world.host.fail_device(Status(StatusCode::kClosed, "later"));
  CHECK(world.host.failure().message() == "as asked");
}

TEST_CASE("events, lanes and ops are bounded") {
  HostDeviceWorld world;
  const LaneId lane = world.make_lane();
  world.host.set_copy_delay_ns(1);
  for (std::size_t index = 0; index < HostDevice::kOpsInFlightMax; ++index) {
    REQUIRE(world.host.submit_copies(lane, {}).is_ok());
  }
  CHECK(world.host.submit_copies(lane, {}).code() == StatusCode::kExhausted);
  world.clock.advance_ns(HostDevice::kOpsInFlightMax);
  CHECK(world.host.run_due() == HostDevice::kOpsInFlightMax);
  CHECK(world.host.submit_copies(lane, {}).is_ok());
  std::size_t num_created = 0;
  while (world.host.create_event().is_ok()) ++num_created;
  CHECK(num_created == Device::kEventsMax);
  CHECK(world.host.create_event().status().code() == StatusCode::kExhausted);
  while (world.host.create_lane(LanePriority::kSave).is_ok()) ++num_created;
  CHECK(num_created == Device::kEventsMax + Device::kLanesMax - 1);
}

}  // namespace
}  // namespace kvtier::testing
