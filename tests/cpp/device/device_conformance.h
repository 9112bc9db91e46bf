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
  /// Page-locked memory, zeroed.
  virtual std::span<std::byte> make_page_locked(std::size_t length_bytes) = 0;
  virtual void write(std::span<std::byte> memory, std::span<const std::byte> bytes) = 0;
  virtual std::vector<std::byte> read(std::span<const std::byte> memory) = 0;
  /// Puts work on the stream that ends by `end_late_work`, and then writes `bytes` to `memory`.
  virtual void write_late(StreamId stream, std::span<std::byte> memory,
                          std::vector<std::byte> bytes) = 0;
  virtual void end_late_work() = 0;
  virtual StreamId make_stream() = 0;
  /// Lets the device work and time pass until it has nothing left that can end.
  virtual void settle() = 0;

  Event make_event(EventUse use = EventUse::kOrder) {
    Result<Event> event = device().create_event(use);
    REQUIRE(event.is_ok());
    return event.value();
  }

  /// An event behind all that is on the stream.
  Event recorded_event(StreamId stream) {
    const Event event = make_event();
    REQUIRE(device().record_event(event, stream).is_ok());
    return event;
  }

  LaneId make_lane() {
    Result<LaneId> lane = device().create_lane(LanePriority::kLoad);
    REQUIRE(lane.is_ok());
    return lane.value();
  }

  /// Copies on the lane after `ready`; the event that comes after.
  Event copy(LaneId lane, const std::vector<CopyPiece>& pieces, Event ready) {
    REQUIRE(device().order_lane_after(lane, ready).is_ok());
    const Status copied = device().submit_copies(lane, pieces);
    REQUIRE_MESSAGE(copied.is_ok(), copied.to_string());
    const Event done = make_event();
    REQUIRE(device().record_lane(lane, done).is_ok());
    return done;
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
  const auto target = world.make_page_locked(64 * 1000);
  const auto payload = make_payload({1, 0}, source.size());
  world.write(source, payload);
  std::vector<CopyPiece> pieces;
  for (std::size_t place = 0; place < source.size(); place += 1000) {
    pieces.push_back(piece_of(source.subspan(place, 1000), target.subspan(place, 1000)));
  }
  pieces.push_back({});
  const Event ready = world.recorded_event(world.make_stream());
  const Event done = world.copy(world.make_lane(), pieces, ready);
  world.settle();
  CHECK(world.device().wait_event(done, kNeverNs).is_ok());
  CHECK(world.is_complete(done));
  CHECK(are_equal(payload, world.read(target)));
  CHECK(world.device().num_batches() == 1);
  CHECK(world.device().submitted_bytes() == source.size());
}

inline void check_order_after_ready(DeviceWorld& world) {
  const auto source = world.make_memory(4096);
  const auto target = world.make_page_locked(4096);
  world.write(source, make_payload({2, 0}, 4096));
  const StreamId stream = world.make_stream();
  // What the kernel writes last is what gets copied.
  world.write_late(stream, source, make_payload({2, 1}, 4096));
  const Event ready = world.recorded_event(stream);
  const Event done = world.copy(world.make_lane(), {piece_of(source, target)}, ready);
  world.settle();
  CHECK_FALSE(world.is_complete(ready));
  CHECK_FALSE(world.is_complete(done));
  CHECK(are_equal(target, std::vector<std::byte>(4096)));
  CHECK(world.device().wait_event(done, 0).code() == StatusCode::kTimeout);
  world.end_late_work();
  world.settle();
  CHECK(world.device().wait_event(done, kNeverNs).is_ok());
  CHECK(world.is_complete(ready));
  CHECK(are_equal(world.read(target), make_payload({2, 1}, 4096)));
}

inline void check_stream_after_lane(DeviceWorld& world) {
  const auto source = world.make_page_locked(4096);
  const auto target = world.make_memory(4096);
  const auto seen = world.make_memory(4096);
  fill_payload({3, 0}, 0, source);
  const StreamId late = world.make_stream();
  world.write_late(late, seen, make_payload({3, 9}, 4096));
  const LaneId lane = world.make_lane();
  const Event loaded = world.copy(lane, {piece_of(source, target)}, world.recorded_event(late));
  // Another stream's work that comes after the load sees what it brought.
  const StreamId next = world.make_stream();
  REQUIRE(world.device().order_stream_after(next, loaded).is_ok());
  const LaneId reader = world.make_lane();
  const Event done = world.copy(reader, {piece_of(target, seen)}, world.recorded_event(next));
  world.settle();
  CHECK_FALSE(world.is_complete(done));
  world.end_late_work();
  world.settle();
  CHECK(world.device().wait_event(done, kNeverNs).is_ok());
  CHECK(are_equal(world.read(seen), make_payload({3, 0}, 4096)));
}

inline void check_chains(DeviceWorld& world) {
  const auto first = world.make_memory(4096);
  const auto second = world.make_memory(4096);
  const auto third = world.make_memory(4096);
  const StreamId stream = world.make_stream();
  world.write_late(stream, first, make_payload({4, 0}, 4096));
  const Event ready = world.recorded_event(stream);
  const Event halfway = world.copy(world.make_lane(), {piece_of(first, second)}, ready);
  const LaneId lane = world.make_lane();
  REQUIRE(world.device().order_lane_after(lane, halfway).is_ok());
  // What was submitted holds on to what it waits for.
  world.device().destroy_event(ready);
  world.device().destroy_event(halfway);
  // And a new event is not mistaken for one of them.
  const Event other = world.recorded_event(world.make_stream());
  const Event done = world.copy(lane, {piece_of(second, third)}, other);
  world.settle();
  CHECK_FALSE(world.is_complete(done));
  world.end_late_work();
  world.settle();
  CHECK(world.device().wait_event(done, kNeverNs).is_ok());
  CHECK(are_equal(world.read(third), make_payload({4, 0}, 4096)));
}

inline void check_empty_batch(DeviceWorld& world) {
  const StreamId stream = world.make_stream();
  world.write_late(stream, world.make_memory(8), std::vector<std::byte>(8));
  const Event ready = world.recorded_event(stream);
  const Event done = world.copy(world.make_lane(), {}, ready);
  const Event other = world.copy(world.make_lane(), {CopyPiece{}}, ready);
  world.settle();
  CHECK_FALSE(world.is_complete(done));
  world.end_late_work();
  world.settle();
  CHECK(world.device().wait_event(done, kNeverNs).is_ok());
  CHECK(world.device().wait_event(other, kNeverNs).is_ok());
}

inline void check_elapsed(DeviceWorld& world) {
  const LaneId lane = world.make_lane();
  const Event begin = world.make_event(EventUse::kTiming);
  const Event end = world.make_event(EventUse::kTiming);
  REQUIRE(world.device().record_lane(lane, begin).is_ok());
  REQUIRE(world.device().record_lane(lane, end).is_ok());
  world.settle();
  REQUIRE(world.device().wait_event(end, kNeverNs).is_ok());
  const Result<TimeNs> elapsed_ns = world.device().elapsed_ns(begin, end);
  REQUIRE(elapsed_ns.is_ok());
  CHECK(elapsed_ns.value() >= 0);
}

inline void check_device_refusals(DeviceWorld& world) {
  Device& device = world.device();
  const auto memory = world.make_memory(4096);
  const auto other = world.make_page_locked(4096);
  const StreamId stream = world.make_stream();
  const LaneId lane = world.make_lane();
  const auto code = [&](const CopyPiece& piece) {
    return device.submit_copies(lane, {&piece, 1}).code();
  };
  CHECK(code({nullptr, memory.data(), 8}) == StatusCode::kInvalidArgument);
  CHECK(code({memory.data(), nullptr, 8}) == StatusCode::kInvalidArgument);
  CHECK(code({memory.data(), memory.data() + 7, 8}) == StatusCode::kInvalidArgument);
  CHECK(device.submit_copies(LaneId{31}, {}).code() == StatusCode::kInvalidArgument);
  CHECK(device.identify_memory(memory.data()).is_ok());
  const Event unrecorded = world.make_event();
  for (const Event event : {Event{}, Event{987654321}, unrecorded}) {
    CHECK(device.order_lane_after(lane, event).code() == StatusCode::kInvalidArgument);
    CHECK(device.order_stream_after(stream, event).code() == StatusCode::kInvalidArgument);
    CHECK(device.query_event(event).status().code() == StatusCode::kInvalidArgument);
    CHECK(device.wait_event(event, 0).code() == StatusCode::kInvalidArgument);
  }
  const Event ready = world.recorded_event(stream);
  device.destroy_event(ready);
  device.destroy_event(ready);
  device.destroy_event(Event{});
  CHECK(device.order_lane_after(lane, ready).code() == StatusCode::kInvalidArgument);
  CHECK(device.record_event(ready, stream).code() == StatusCode::kInvalidArgument);
  CHECK(device.record_lane(lane, ready).code() == StatusCode::kInvalidArgument);
  world.settle();
  CHECK(device.num_batches() == 0);
  CHECK(device.failure().is_ok());
}

inline void check_device_conformance(const MakeDeviceWorld& make_world) {
  const std::unique_ptr<DeviceWorld> world = make_world();
  CHECK(!world->device().info().name.empty());
  SUBCASE("a batch copies all its pieces and then completes its event") { check_copies(*world); }
  SUBCASE("nothing is read or written before the ready event") { check_order_after_ready(*world); }
  SUBCASE("a stream's later work comes after the lane's") { check_stream_after_lane(*world); }
  SUBCASE("a lane may wait for another one") { check_chains(*world); }
  SUBCASE("an empty batch completes after its ready event") { check_empty_batch(*world); }
  SUBCASE("the time between events is known") { check_elapsed(*world); }
  SUBCASE("bad pieces and events that say nothing are refused") { check_device_refusals(*world); }
}

}  // namespace kvtier::testing
