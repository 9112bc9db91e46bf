// HostDevice: the reference Device, whose memory is the host's. It copies when told to, on an
// injected clock, so that tests decide what is late and what fails. Thread-safe.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "device/device.h"

namespace kvtier {

class HostDevice final : public Device {
 public:
  /// `clock` outlives the device.
  explicit HostDevice(Clock& clock) : clock_(clock) {}

  /// How long after its ready event a batch is copied (from now on).
  void set_copy_delay_ns(TimeNs delay_ns);
  /// How long after its recording an event completes (from now on): the engine's kernels still run.
  /// kNeverNs: it never does.
  void set_event_delay_ns(TimeNs delay_ns);
  /// The batch submitted after `num_batches` more fails when it is due, and the device with it.
  /// Half of that batch's bytes have been copied by then.
  void fail_batch_after(std::uint64_t num_batches, Status failure);
  /// The device fails now. Nothing is copied any more.
  void fail_device(Status failure);

  /// Copies what is due. Returns the number of batches that ended.
  std::size_t run_due();
  /// When the next batch is due (kNeverNs: none).
  TimeNs next_due_ns() const;

 private:
  struct EventState {
    bool is_recorded = false;
    TimeNs complete_ns = 0;
    std::uint64_t batch_id = 0;  // Not 0: complete only after this batch was copied.
  };
  struct Batch {
    std::uint64_t batch_id = 0;
    TimeNs due_ns = 0;
    std::vector<CopyPiece> pieces;
    bool is_failing = false;
  };

  DeviceInfo do_info() const override { return {"host", DeviceKind::kHost, true}; }
  Result<Event> do_create_event() override;
  void do_destroy_event(Event event) override;
  Status do_record_event(Event event, StreamId stream) override;
  Result<bool> do_query_event(Event event) override;
  /// Cannot block, since only the caller could let time pass: kTimeout at once.
  Status do_wait_event(Event event, TimeNs deadline_ns) override;
  Result<Event> do_submit_copies(std::span<const CopyPiece> pieces, Event ready) override;
  Status do_failure() override;

  // With mutex_ held.
  Result<Event> add_event(const EventState& state);
  Result<EventState> find_recorded(Event event) const;
  bool is_complete(const EventState& state) const;
  std::size_t run_due_locked();
  std::size_t due_batch_index() const;

  // Constant after construction.
  Clock& clock_;
  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::map<std::uint64_t, EventState> events_;
  std::vector<Batch> batches_;  // In order of submission.
  std::uint64_t last_event_id_ = 0;
  std::uint64_t last_batch_id_ = 0;
  TimeNs copy_delay_ns_ = 0;
  TimeNs event_delay_ns_ = 0;
  std::uint64_t failing_batch_id_ = 0;
  Status batch_failure_;
  Status failure_;
};

}  // namespace kvtier
