// What every Device must do, run on each implementation by its own test file. Not thread-safe.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <vector>

#include "device/device.h"
#include "testing/payload.h"

namespace kvtier::testing {

/// A device with memory of its own and work whose end the test decides.
class DeviceWorld {
 public:
  virtual ~DeviceWorld() = default;
  virtual Device& device() = 0;
  /// Memory that the device can copy from and to, zeroed.
  virtual std::span<std::byte> make_memory(std::size_t length_bytes) = 0;
  /// Records `event` behind work that does not end before `end_late_work`.
  virtual void record_late(Event event) = 0;
  virtual void end_late_work() = 0;
  /// Lets the device work and time pass until it has nothing left that can end.
  virtual void settle() = 0;

  Event recorded_event() {
    Result<Event> event = device().create_event();
    REQUIRE(event.is_ok());
    REQUIRE(device().record_event(event.value(), {}).is_ok());
    return event.value();
  }

  Event submit(const std::vector<CopyPiece>& pieces, Event ready) {
    Result<Event> done = device().submit_copies(pieces, ready);
    REQUIRE_MESSAGE(done.is_ok(), done.status().to_string());
    return done.value();
  }

  bool is_complete(Event event) {
    Result<bool> answer = device().query_event(event);
    REQUIRE(answer.is_ok());
    return answer.value();
  }
};

using MakeDeviceWorld = std::function<std::unique_ptr<DeviceWorld>()>;

inline CopyPiece piece_of(std::span<const std::byte> source, std::span<std::byte> target) {
  return {source.data(), target.data(), source.size()};
}

inline void check_copies(DeviceWorld& world) {
  const auto source = world.make_memory(64 * 1000);
  const auto target = world.make_memory(64 * 1000);
  fill_payload({1, 0}, 0, source);
  std::vector<CopyPiece> pieces;
  for (std::size_t place = 0; place < source.size(); place += 1000) {
    pieces.push_back(piece_of(source.subspan(place, 1000), target.subspan(place, 1000)));
  }
  const Event done = world.submit(pieces, world.recorded_event());
  world.settle();
  CHECK(world.is_complete(done));
  CHECK(are_equal(source, target));
  CHECK(world.device().num_batches() == 1);
  CHECK(world.device().submitted_bytes() == source.size());
  CHECK(world.device().wait_event(done, kNeverNs).is_ok());
}

inline void check_order_after_ready(DeviceWorld& world) {
  const auto source = world.make_memory(4096);
  const auto target = world.make_memory(4096);
  fill_payload({2, 0}, 0, source);
  const Event ready = world.recorded_event();
  world.record_late(ready);
  const Event done = world.submit({piece_of(source, target)}, ready);
  world.settle();
  CHECK_FALSE(world.is_complete(ready));
  CHECK_FALSE(world.is_complete(done));
  CHECK(are_equal(target, std::vector<std::byte>(4096)));
  CHECK(world.device().wait_event(done, 0).code() == StatusCode::kTimeout);
  // What the kernel writes last is what gets copied.
  fill_payload({2, 1}, 0, source);
  world.end_late_work();
  world.settle();
  CHECK(world.is_complete(ready));
  CHECK(world.is_complete(done));
  CHECK(are_equal(target, make_payload({2, 1}, 4096)));
}

inline void check_chains(DeviceWorld& world) {
  const auto first = world.make_memory(4096);
  const auto second = world.make_memory(4096);
  const auto third = world.make_memory(4096);
  fill_payload({3, 0}, 0, first);
  const Event ready = world.recorded_event();
  world.record_late(ready);
  const Event halfway = world.submit({piece_of(first, second)}, ready);
  const Event done = world.submit({piece_of(second, third)}, halfway);
  // The copies hold on to what they wait for.
  world.device().destroy_event(ready);
  world.device().destroy_event(halfway);
  world.end_late_work();
  world.settle();
  CHECK(world.is_complete(done));
  CHECK(are_equal(first, third));
}

inline void check_empty_batch(DeviceWorld& world) {
  const Event ready = world.recorded_event();
  world.record_late(ready);
  const Event done = world.submit({}, ready);
  const Event other = world.submit({CopyPiece{}}, ready);
  world.settle();
  CHECK_FALSE(world.is_complete(done));
  world.end_late_work();
  world.settle();
  CHECK(world.is_complete(done));
  CHECK(world.is_complete(other));
}

inline void check_device_refusals(DeviceWorld& world) {
  Device& device = world.device();
  const auto memory = world.make_memory(4096);
  const auto other = world.make_memory(4096);
  const Event ready = world.recorded_event();
  const auto code = [&](const CopyPiece& piece, Event event) {
    return device.submit_copies({&piece, 1}, event).status().code();
  };
  const CopyPiece good = piece_of(memory, other);
  CHECK(code({nullptr, memory.data(), 8}, ready) == StatusCode::kInvalidArgument);
  CHECK(code({memory.data(), nullptr, 8}, ready) == StatusCode::kInvalidArgument);
  CHECK(code({memory.data(), memory.data() + 7, 8}, ready) == StatusCode::kInvalidArgument);
  CHECK(code(good, Event{}) == StatusCode::kInvalidArgument);
  CHECK(code(good, Event{987654321}) == StatusCode::kInvalidArgument);
  const Event unrecorded = device.create_event().value();
  CHECK(code(good, unrecorded) == StatusCode::kInvalidArgument);
  CHECK(device.query_event(unrecorded).status().code() == StatusCode::kInvalidArgument);
  device.destroy_event(ready);
  device.destroy_event(ready);
  device.destroy_event(Event{});
  CHECK(code(good, ready) == StatusCode::kInvalidArgument);
  CHECK(device.record_event(ready, {}).code() == StatusCode::kInvalidArgument);
  CHECK(device.wait_event(ready, 0).code() == StatusCode::kInvalidArgument);
  world.settle();
  CHECK(are_equal(other, std::vector<std::byte>(4096)));
  CHECK(device.num_batches() == 0);
  CHECK(device.failure().is_ok());
}

inline void check_device_conformance(const MakeDeviceWorld& make_world) {
  const std::unique_ptr<DeviceWorld> world = make_world();
  CHECK(!world->device().info().name.empty());
  SUBCASE("a batch copies all its pieces and then completes its event") { check_copies(*world); }
  SUBCASE("nothing is read or written before the ready event") { check_order_after_ready(*world); }
  SUBCASE("a batch may wait for another one") { check_chains(*world); }
  SUBCASE("an empty batch completes after its ready event") { check_empty_batch(*world); }
  SUBCASE("bad pieces and events that say nothing are refused") { check_device_refusals(*world); }
}

}  // namespace kvtier::testing
