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
  void record_late(Event event) override {
    host.set_event_delay_ns(kLateNs);
    REQUIRE(host.record_event(event, {}).is_ok());
    host.set_event_delay_ns(0);
  }
  void end_late_work() override { clock.advance_ns(kLateNs); }
  void settle() override { host.run_due(); }

  SimClock clock;
  HostDevice host{clock};

 private:
  static constexpr TimeNs kLateNs = 5 * kNsPerMs;
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory_;
};

TEST_CASE("the host device keeps the contract") {
  check_device_conformance([] { return std::make_unique<HostDeviceWorld>(); });
}

TEST_CASE("a batch is copied its delay after the ready event and not before") {
  HostDeviceWorld world;
  const auto source = world.make_memory(100);
  const auto target = world.make_memory(100);
  fill_payload({1, 0}, 0, source);
  const Event ready = world.recorded_event();
  world.host.set_copy_delay_ns(1000);
  const TimeNs start_ns = world.clock.now_ns();
  const Event done = world.submit({piece_of(source, target)}, ready);
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

TEST_CASE("a batch behind an event that never completes is never copied") {
  HostDeviceWorld world;
  const auto source = world.make_memory(100);
  const auto target = world.make_memory(100);
  const Event ready = world.recorded_event();
  world.host.set_event_delay_ns(kNeverNs);
  REQUIRE(world.host.record_event(ready, {}).is_ok());
  world.host.set_copy_delay_ns(kNsPerS);
  const Event done = world.submit({piece_of(source, target)}, ready);
  world.clock.advance_ns(kNsPerS * 1000);
  CHECK(world.host.run_due() == 0);
  CHECK_FALSE(world.is_complete(done));
}

TEST_CASE("a failing batch fails the device for good and nothing is copied after it") {
  HostDeviceWorld world;
  const auto source = world.make_memory(4000);
  const auto first = world.make_memory(4000);
  const auto second = world.make_memory(4000);
  const auto third = world.make_memory(4000);
  fill_payload({1, 0}, 0, source);
  const Event ready = world.recorded_event();
  world.host.fail_batch_after(1, Status(StatusCode::kIoError, "as asked"));
  world.submit({piece_of(source, first)}, ready);
  const Event failing = world.submit({piece_of(source, second)}, ready);
  world.submit({piece_of(source, third)}, ready);
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
  CHECK(world.host.submit_copies({}, ready).status().code() == StatusCode::kIoError);
  world.host.fail_device(Status(StatusCode::kClosed, "later"));
  CHECK(world.host.failure().message() == "as asked");
}

TEST_CASE("events and batches are bounded") {
  HostDeviceWorld world;
  const Event ready = world.recorded_event();
  world.host.set_copy_delay_ns(1);
  for (std::size_t index = 0; index < Device::kBatchesInFlightMax; ++index) world.submit({}, ready);
  CHECK(world.host.submit_copies({}, ready).status().code() == StatusCode::kExhausted);
  world.clock.advance_ns(1);
  CHECK(world.host.run_due() == Device::kBatchesInFlightMax);
  CHECK(world.host.submit_copies({}, ready).is_ok());
  std::size_t num_created = 0;
  while (world.host.create_event().is_ok()) ++num_created;
  CHECK(num_created == Device::kEventsMax - Device::kBatchesInFlightMax - 2);
  CHECK(world.host.create_event().status().code() == StatusCode::kExhausted);
}

}  // namespace
}  // namespace kvtier::testing
