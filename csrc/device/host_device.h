// HostDevice: the reference Device, whose memory is the host's. It works when told to, on an
// injected clock, so that tests decide what is late and what fails. Thread-safe.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "device/device.h"

namespace kvtier {

class HostDevice final : public Device {
 public:
  /// `clock` outlives the device.
  explicit HostDevice(Clock& clock) : clock_(clock) {}
  ~HostDevice() override;

  /// How long each copy of a lane takes (from now on); its bytes arrive at the end of that time.
  void set_copy_delay_ns(TimeNs delay_ns);
  /// How long each block copy of a lane takes instead (from now on).
  void set_block_copy_delay_ns(TimeNs delay_ns);
  /// How often a lane was ordered after an event.
  std::uint64_t num_lane_orders() const;
  /// The order of a lane that is asked for after `num_orders` more is left out, as by a program
  /// that forgot it.
  void leave_out_lane_order_after(std::uint64_t num_orders);
  /// Puts a kernel of the engine on its stream: `run` is called when `duration_ns` have passed
  /// (kNeverNs: never). It must not call the device.
  void submit_kernel(StreamId stream, TimeNs duration_ns, std::function<void()> run);
  /// The copy submitted after `num_copies` more fails when it is due, and the device with it. Half
  /// of that copy's bytes have been moved by then.
  void fail_copy_after(std::uint64_t num_copies, Status failure);
  /// The device fails now. Nothing is copied any more.
  void fail_device(Status failure);
  /// page_lock() answers kExhausted for what goes beyond.
  void set_page_lock_limit_bytes(std::uint64_t limit_bytes);
  std::uint64_t page_locked_bytes() const;
  /// The memory is no longer there, as after its owner freed it: identify_memory() refuses it.
  void forget_memory(const std::byte* address);
  /// Whether info() calls host and device memory one and the same.
  void set_memory_unified(bool is_unified);

  /// Does what is due, unless another thread is at it. Returns the number of copies and kernels
  /// that ended.
  std::size_t run_due();
  /// When the next copy or kernel is due (kNeverNs: none).
  TimeNs next_due_ns() const;

  /// Copies, kernels, records and waits that have not ended. Beyond: kExhausted.
  static constexpr std::size_t kOpsInFlightMax = 65536;

 private:
  /// What one recording of an event stands for. Those that wait hold it too.
  struct Point {
    bool is_complete = false;
    TimeNs complete_ns = 0;
  };
  enum class OpKind : std::uint8_t { kWait, kRecord, kCopies, kBlockCopy, kKernel };
  struct Op {
    OpKind kind = OpKind::kWait;
    std::uint64_t op_id = 0;
    TimeNs submitted_ns = 0;
    TimeNs duration_ns = 0;
    std::shared_ptr<Point> point;   // kWait, kRecord.
    std::vector<CopyPiece> pieces;  // kCopies.
    BlockCopy block_copy;           // kBlockCopy, over `places` and `table`.
    std::vector<BlockPlace> places;
    std::shared_ptr<const FragmentTable> table;
    std::function<void()> run;  // kKernel.
    bool is_failing = false;
  };
  struct Queue {
    std::deque<Op> ops;
    TimeNs free_ns = 0;  // When what ran last had ended.
  };

  DeviceInfo do_info() const override;
  Result<std::byte*> do_allocate(std::uint64_t length_bytes) override;
  void do_deallocate(std::byte* memory) override;
  Result<std::byte*> do_allocate_page_locked(std::uint64_t length_bytes) override;
  void do_deallocate_page_locked(std::byte* memory) override;
  Status do_page_lock(std::span<std::byte> memory) override;
  void do_page_unlock(std::byte* memory) override;
  Result<std::uint64_t> do_identify_memory(const std::byte* address,
                                           std::uint64_t length_bytes) override;
  Result<Event> do_create_event(EventUse use) override;
  void do_destroy_event(Event event) override;
  Status do_record_event(Event event, StreamId stream) override;
  Status do_order_stream_after(StreamId stream, Event event) override;
  Result<bool> do_query_event(Event event) override;
  /// Cannot block, since only the caller could let time pass: kTimeout at once.
  Status do_wait_event(Event event, TimeNs deadline_ns) override;
  Result<TimeNs> do_elapsed_ns(Event begin, Event end) override;
  Result<LaneId> do_create_lane(LanePriority priority) override;
  void do_destroy_lane(LaneId lane) override;
  Status do_order_lane_after(LaneId lane, Event event) override;
  Status do_record_lane(LaneId lane, Event event) override;
  Status do_submit_copies(LaneId lane, std::span<const CopyPiece> pieces) override;
  Result<std::uint32_t> do_create_fragment_table(const FragmentTable& table) override;
  void do_destroy_fragment_table(std::uint32_t table_id) override;
  Status do_submit_block_copy(LaneId lane, const BlockCopy& op) override;
  void do_progress() override { run_due(); }
  Status do_failure() override;

  // With mutex_ held.
  Result<std::shared_ptr<Point>> find_recorded(Event event) const;
  Result<Queue*> find_lane(LaneId lane);
  Status record(Event event, Queue& queue);
  Status order_after(Queue& queue, Event event);
  Status push(Queue& queue, Op op);
  static Status move_bytes(const Op& op);  // Without the mutex.
  bool is_blocked(const Op& op) const;
  TimeNs end_ns_of(const Queue& queue, const Op& op) const;
  Queue* find_due_queue();
  // Let go of the mutex while bytes are moved.
  bool end_op(Queue& queue, std::unique_lock<std::mutex>& lock);
  std::size_t run_due_locked(std::unique_lock<std::mutex>& lock);
  void fail_locked(Status failure);

  // Constant after construction.
  Clock& clock_;
  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<Point>> events_;  // Null: never recorded.
  std::map<std::uint64_t, Queue> streams_;
  std::deque<Queue> lanes_;
  std::vector<LaneId> spare_lanes_;
  std::map<std::uint32_t, std::shared_ptr<const FragmentTable>> tables_;
  std::map<std::byte*, std::uint64_t> page_locked_;
  std::map<std::byte*, std::uint64_t> allocations_;
  std::set<const std::byte*> forgotten_;
  std::uint64_t page_lock_limit_bytes_ = UINT64_MAX;
  std::uint64_t last_event_id_ = 0;
  std::uint64_t last_op_id_ = 0;
  std::uint64_t num_copies_ = 0;
  std::uint64_t num_lane_orders_ = 0;
  std::uint64_t missing_lane_order_ = 0;  // Counted from 1; 0: none.
  std::size_t num_ops_ = 0;
  bool is_running_ = false;
  std::uint32_t last_table_id_ = 0;
  TimeNs copy_delay_ns_ = 0;
  TimeNs block_copy_delay_ns_ = 0;
  std::uint64_t failing_copy_ = 0;  // Counted from 1; 0: none.
  Status copy_failure_;
  Status failure_;
  // Atomic, relaxed: info() is asked in forked children too, where the mutex may be held.
  std::atomic<bool> is_memory_unified_{true};
};

}  // namespace kvtier
