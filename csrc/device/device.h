// Device: memory, events and ordered copies of one accelerator (or of the host, as reference)
// behind one interface. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "device/block_copy.h"
#include "device/fragment_table.h"
#include "device/process_owner.h"

namespace kvtier {

enum class DeviceKind : std::uint8_t { kHost, kCuda };

struct DeviceInfo {
  std::string name;
  DeviceKind kind = DeviceKind::kHost;
  bool is_integrated = false;      // Its memory is the machine's.
  bool is_memory_unified = false;  // Host and device share memory: copies between them buy nothing.
  bool has_kernels = false;        // submit_block_copy() works.
  /// Also where contiguous memory is page-locked host memory that the device allocated.
  bool can_kernels_reach_host = false;
  /// The same of memory that page_lock() locked. Not where its device address is another one.
  bool can_kernels_reach_registered = false;
  std::string identity;     // Of this very device and its driver, for what is kept about it.
  std::string pci_address;  // As sysfs names it: "0000:3b:00.0"; empty: of no such bus.
  std::string note;         // Why something is less than best; empty when nothing is.
};

/// A point in the device's work. Opaque; 0 is no event.
struct Event {
  std::uint64_t event_id = 0;
  bool operator==(const Event&) const = default;
};

/// The engine's stream, as the number it knows it by; 0 is the legacy default stream.
struct StreamId {
  std::uint64_t stream_id = 0;
};

/// A queue of the device's own work, in order. Lanes run beside each other.
struct LaneId {
  std::uint32_t lane_index = 0;
  bool operator==(const LaneId&) const = default;
};

/// What an event is asked later: orders alone are cheaper.
enum class EventUse : std::uint8_t { kOrder, kTiming };

/// Which lane's kernels go first where they compete.
enum class LanePriority : std::uint8_t { kLoad, kSave };

/// One contiguous copy. Either side may be device memory or host memory.
struct CopyPiece {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::uint64_t length_bytes = 0;
};

/// In a forked child a device is of no use: calls answer kClosed or do nothing, and take no mutex,
/// which a thread that is not there may hold.
class Device {
 public:
  virtual ~Device() = default;
  /// Whether this is the process that opened it.
  bool is_this_process() const { return owner_.is_this_process(); }

  DeviceInfo info() const { return do_info(); }

  /// Memory of the device, not initialised, 256-byte aligned. Slow: for start-up and the end.
  Result<std::byte*> allocate(std::uint64_t length_bytes);
  void deallocate(std::byte* memory);
  /// Page-locked host memory that the device's kernels see at the same address.
  Result<std::byte*> allocate_page_locked(std::uint64_t length_bytes);
  void deallocate_page_locked(std::byte* memory);
  /// Page-locks host memory of the caller, so that copies run by themselves and kernels see it at
  /// the same address where can_kernels_reach_registered. kUnsupported, kExhausted or kIoError: the
  /// memory stays usable for copies.
  Status page_lock(std::span<std::byte> memory);
  void page_unlock(std::byte* memory);

  /// Which allocation holds the address: another number once it was freed and taken anew (0: the
  /// device cannot tell). kInvalidArgument: some of the `length_bytes` from there on are not memory
  /// of this device. Longer than 1: slow.
  Result<std::uint64_t> identify_memory(const std::byte* address, std::uint64_t length_bytes = 1);

  /// Events belong to the caller until destroy_event. kExhausted beyond kEventsMax.
  Result<Event> create_event(EventUse use = EventUse::kOrder);
  /// A copy or a record that is under way goes on. Events that are not there are ignored.
  void destroy_event(Event event);
  /// The event completes when all that was put on the engine's stream before has ended. Recording
  /// anew moves it; what waits for it keeps the older point. kInvalidArgument: not a stream of this
  /// device, or one that is being captured.
  Status record_event(Event event, StreamId stream);
  /// What is put on the engine's stream from now on runs after the event.
  Status order_stream_after(StreamId stream, Event event);
  /// Whether the event is complete. Does not block. kInvalidArgument: unknown or never recorded;
  /// the device's failure once it has failed. Another status says nothing of the work before it.
  Result<bool> query_event(Event event);
  /// Blocks until the event is complete. kTimeout at `deadline_ns`; else as query_event.
  Status wait_event(Event event, TimeNs deadline_ns);
  /// The device's time between two complete events of EventUse::kTiming.
  Result<TimeNs> elapsed_ns(Event begin, Event end);

  /// Lanes belong to the caller until destroy_lane. kExhausted beyond kLanesMax.
  Result<LaneId> create_lane(LanePriority priority);
  /// The next lane of its priority may be this one again.
  void destroy_lane(LaneId lane);
  /// What is submitted to the lane from now on runs after the event, which may be destroyed then.
  Status order_lane_after(LaneId lane, Event event);
  /// The event completes when all that was submitted to the lane before has ended.
  Status record_lane(LaneId lane, Event event);

  /// Copies all pieces, in any order among themselves, in the lane's order. Does not block, unless
  /// host memory is not page-locked.
  /// Ownership: sources and targets belong to the device until a later event of the lane is
  /// complete, or until the device has failed and was destroyed.
  /// Requires: pieces that do not overlap each other's targets.
  /// Returns kInvalidArgument (no address, source over target), or the device's failure.
  Status submit_copies(LaneId lane, std::span<const CopyPiece> pieces);

  /// A copy of `table` where kernels find it. kExhausted: the space for tables is used up.
  Result<std::uint32_t> create_fragment_table(const FragmentTable& table);
  /// Requires: no op that uses it is under way.
  void destroy_fragment_table(std::uint32_t table_id);
  /// Moves and hashes leaves, in the lane's order; ownership as for submit_copies. Contiguous
  /// memory is of the device or page-locked. kInvalidArgument: unknown table, block ids or leaves
  /// out of range; kUnsupported: no kernels.
  Status submit_block_copy(LaneId lane, const BlockCopy& op);

  /// Lets work go on that needs the caller's thread; a real device needs none.
  void progress() {
    if (is_this_process()) do_progress();
  }

  /// Ok, or the first failure of the device: it stays, and every later call answers it.
  Status failure();

  std::uint64_t num_batches() const { return num_batches_.load(std::memory_order_relaxed); }
  std::uint64_t submitted_bytes() const { return submitted_bytes_.load(std::memory_order_relaxed); }

  static constexpr std::size_t kEventsMax = 65536;
  static constexpr std::size_t kLanesMax = 32;

 private:
  virtual DeviceInfo do_info() const = 0;
  virtual Result<std::byte*> do_allocate(std::uint64_t length_bytes) = 0;
  virtual void do_deallocate(std::byte* memory) = 0;
  virtual Result<std::byte*> do_allocate_page_locked(std::uint64_t length_bytes) = 0;
  virtual void do_deallocate_page_locked(std::byte* memory) = 0;
  virtual Status do_page_lock(std::span<std::byte> memory) = 0;
  virtual void do_page_unlock(std::byte* memory) = 0;
  virtual Result<std::uint64_t> do_identify_memory(const std::byte* address,
                                                   std::uint64_t length_bytes) = 0;
  virtual Result<Event> do_create_event(EventUse use) = 0;
  virtual void do_destroy_event(Event event) = 0;
  virtual Status do_record_event(Event event, StreamId stream) = 0;
  virtual Status do_order_stream_after(StreamId stream, Event event) = 0;
  virtual Result<bool> do_query_event(Event event) = 0;
  virtual Status do_wait_event(Event event, TimeNs deadline_ns) = 0;
  virtual Result<TimeNs> do_elapsed_ns(Event begin, Event end) = 0;
  virtual Result<LaneId> do_create_lane(LanePriority priority) = 0;
  virtual void do_destroy_lane(LaneId lane) = 0;
  virtual Status do_order_lane_after(LaneId lane, Event event) = 0;
  virtual Status do_record_lane(LaneId lane, Event event) = 0;
  virtual Status do_submit_copies(LaneId lane, std::span<const CopyPiece> pieces) = 0;
  virtual Result<std::uint32_t> do_create_fragment_table(const FragmentTable& table) = 0;
  virtual void do_destroy_fragment_table(std::uint32_t table_id) = 0;
  virtual Status do_submit_block_copy(LaneId lane, const BlockCopy& op) = 0;
  virtual void do_progress() {}
  virtual Status do_failure() = 0;

  const ProcessOwner owner_;
  // Atomics, relaxed: counters that order nothing.
  std::atomic<std::uint64_t> num_batches_{0};
  std::atomic<std::uint64_t> submitted_bytes_{0};
};

/// For implementations: kInvalidArgument when the op names leaves or blocks that `table` has not.
Status check_block_copy(const BlockCopy& op, const FragmentTable& table);

}  // namespace kvtier
