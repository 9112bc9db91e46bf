// Device: events and copies of one accelerator (or of the host, as reference) behind one interface.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace kvtier {

enum class DeviceKind : std::uint8_t { kHost, kCuda };

struct DeviceInfo {
  std::string name;
  DeviceKind kind = DeviceKind::kHost;
  bool is_memory_unified = false;  // Host and device share memory: copies between them buy nothing.
};

/// A point in the device's work. Opaque; 0 is no event.
struct Event {
  std::uint64_t event_id = 0;
  bool operator==(const Event&) const = default;
};

/// The engine's stream, as the number it knows it by.
struct StreamId {
  std::uint64_t stream_id = 0;
};

/// One contiguous copy. Either side may be device memory or page-locked host memory.
struct CopyPiece {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::uint64_t length_bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  DeviceInfo info() const { return do_info(); }

  /// Events belong to the caller until destroy_event. kExhausted beyond kEventsMax.
  Result<Event> create_event();
  /// A copy or a record that is under way goes on. Events that are not there are ignored.
  void destroy_event(Event event);
  /// The event completes when all that was put on the engine's stream before has ended. Recording
  /// anew moves it; what was submitted on it keeps the older point.
  Status record_event(Event event, StreamId stream);
  /// Whether the event is complete. Does not block. kInvalidArgument: unknown or never recorded;
  /// the device's failure once it has failed.
  Result<bool> query_event(Event event);
  /// Blocks until the event is complete. kTimeout at `deadline_ns`; else as query_event.
  Status wait_event(Event event, TimeNs deadline_ns);

  /// Copies all pieces, in any order among themselves, after `ready` is complete; returns an event
  /// (the caller's) that completes after the last byte. Does not block.
  /// Ownership: sources and targets belong to the device until the returned event is complete, or
  /// until the device has failed and was destroyed.
  /// Requires: pieces that do not overlap each other's targets.
  /// Returns kInvalidArgument (no address, source over target, `ready` unknown or never recorded),
  /// kExhausted (kBatchesInFlightMax), or the device's failure.
  Result<Event> submit_copies(std::span<const CopyPiece> pieces, Event ready);

  /// Ok, or the first failure of the device: it stays, and every later call answers it.
  Status failure() { return do_failure(); }

  std::uint64_t num_batches() const { return num_batches_.load(std::memory_order_relaxed); }
  std::uint64_t submitted_bytes() const { return submitted_bytes_.load(std::memory_order_relaxed); }

  static constexpr std::size_t kEventsMax = 65536;
  static constexpr std::size_t kBatchesInFlightMax = 4096;

 private:
  virtual DeviceInfo do_info() const = 0;
  virtual Result<Event> do_create_event() = 0;
  virtual void do_destroy_event(Event event) = 0;
  virtual Status do_record_event(Event event, StreamId stream) = 0;
  virtual Result<bool> do_query_event(Event event) = 0;
  virtual Status do_wait_event(Event event, TimeNs deadline_ns) = 0;
  virtual Result<Event> do_submit_copies(std::span<const CopyPiece> pieces, Event ready) = 0;
  virtual Status do_failure() = 0;

  // Atomics, relaxed: counters that order nothing.
  std::atomic<std::uint64_t> num_batches_{0};
  std::atomic<std::uint64_t> submitted_bytes_{0};
};

}  // namespace kvtier
