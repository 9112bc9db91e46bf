// WorkerJob: one plan that a worker carries out, until it is known what became of it. Thread-safe.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/wait_piece.h"
#include "paged/move_plan.h"
#include "paged/paged_device.h"

namespace kvtier::paged {

class WorkerJob {
 public:
  explicit WorkerJob(std::shared_ptr<PagedDevice> device) : device_(std::move(device)) {}
  WorkerJob(const WorkerJob&) = delete;
  WorkerJob& operator=(const WorkerJob&) = delete;

  /// Once true, the worker touches neither rows nor slots of the plan any more.
  bool is_ended() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return result_.has_value();
  }
  /// Whether it has ended within `timeout_ns`.
  bool wait(TimeNs timeout_ns) {
    const TimeNs deadline_ns = device_->deadline_ns(timeout_ns);
    std::unique_lock<std::mutex> lock(mutex_);
    while (!result_) {
      const TimeNs now_ns = device_->clock().now_ns();
      if (now_ns >= deadline_ns) return false;
      ended_.wait_for(lock, piece_until(now_ns, deadline_ns));
    }
    return true;
  }
  /// What to answer; its rank is for the caller to set. Requires: it has ended.
  RankResult result() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    KVTIER_CHECK(result_.has_value());
    return *result_;
  }
  /// Asks it to end early; the result still comes.
  void cancel() { device_->engine().cancel(transfer_job_id_); }
  /// Orders work that is put on `stream` from now on after the last byte. Blocks until the device
  /// was told: kTimeout after `timeout_ns`.
  Status order_stream_after(StreamId stream, TimeNs timeout_ns) {
    if (device_->engine().device_info().kind == DeviceKind::kHost) {
      // Where there are no streams, "after the job" is when it has ended.
      return wait(timeout_ns) ? Status::ok() : Status(StatusCode::kTimeout, "the job goes on");
    }
    const Status ordered = device_->engine().order_stream_after(transfer_job_id_, stream,
                                                                device_->deadline_ns(timeout_ns));
    // One that has ended needs no order.
    return ordered.code() == StatusCode::kNotFound ? Status::ok() : ordered;
  }

  // For the worker, once each.
  void set_transfer(transfer::TransferJobId job_id) { transfer_job_id_ = job_id; }
  void end(RankResult result) {
    const std::lock_guard<std::mutex> lock(mutex_);
    result_ = std::move(result);
    ended_.notify_all();
  }

 private:
  // Constant once the caller has the job.
  const std::shared_ptr<PagedDevice> device_;
  transfer::TransferJobId transfer_job_id_ = 0;
  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<RankResult> result_;
};

}  // namespace kvtier::paged
