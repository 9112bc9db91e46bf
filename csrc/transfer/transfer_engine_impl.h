// The insides of TransferEngine: what callers reach, under one mutex, and what only the engine's
// thread (or whoever drives advance()) touches.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/wait_piece.h"
#include "transfer/host_memory_locker.h"
#include "transfer/page_locked_ranges.h"
#include "transfer/transfer_engine.h"
#include "transfer/transfer_job.h"
#include "transfer/transfer_pipe.h"

namespace kvtier::transfer {

class TransferEngine::Impl {
 public:
  Impl(Device& device, Clock& clock, const TransferOptions& options);
  ~Impl();

  /// Takes lanes and memory, then starts the thread.
  Status start();

  // Of callers; see TransferEngine.
  Result<AttachmentId> attach(std::span<const layout::TensorPlace> tensors,
                              std::span<const layout::FragmentPlace> fragments,
                              std::span<const std::uint64_t> part_bytes);
  Status detach(AttachmentId attachment_id);
  Result<std::shared_ptr<const ReadyPoint>> record_ready(StreamId stream);
  Result<TransferJobId> submit(const TransferRequest& request);
  void cancel(TransferJobId job_id);
  bool wait(TransferJobId job_id, TimeNs deadline_ns);
  Status order_stream_after(TransferJobId job_id, StreamId stream, TimeNs deadline_ns);
  void poll(std::vector<TransferResult>& results);
  Result<TransferResult> take(TransferJobId job_id);
  bool close(TimeNs deadline_ns);
  TimeNs advance();
  // As close() with the present as deadline, and ends the thread. False: a call of the driver holds
  // it, so that it may come back to this object and the device at any time.
  bool stop();
  bool is_this_process() const { return device_.is_this_process(); }
  bool has_stopped() const;

  PageLockedRanges& ranges() { return ranges_; }
  HostMemoryLocker& locker() { return locker_; }
  Status begin_host_memory(std::span<std::byte> memory);
  TransferStats stats() const;
  DeviceInfo device_info() const { return device_info_; }
  MethodModel model() const;
  void set_model(const MethodModel& model);
  void add_note(const std::string& text);
  std::string note() const;

 private:
  using JobPointer = std::shared_ptr<TransferJob>;
  /// One direction, of the engine's thread.
  struct Direction {
    std::unique_ptr<TransferPipe> pipe;
    std::deque<JobPointer> queued;   // Nothing of them was submitted.
    JobPointer current;              // Submitted in part; null: none.
    std::vector<JobPointer> active;  // All that are in the pipe, the current one included.
    TimeNs last_end_ns = -kNsPerS;   // When chunks were last seen to end.
    bool is_filling = false;  // Whether the current job's chunks go on until there is no room.
  };

  // Of callers.
  Status check_request(const TransferRequest& request, const Attachment& attachment) const;
  Result<JobPointer> make_job(const TransferRequest& request);
  void run_thread();
  void wake_locked();
  // Waits with `lock` until `is_done()`, which runs with it held; a driven engine advances once.
  template <typename Predicate>
  bool wait_for(std::unique_lock<std::mutex>& lock, TimeNs deadline_ns, const Predicate& is_done);
  TransferResult take_result_locked(std::map<TransferJobId, JobPointer>::iterator found);

  // Whether the thread has left, by then.
  bool join_thread(std::unique_lock<std::mutex>& lock, TimeNs deadline_ns);

  // Of the engine's thread.
  TimeNs work();
  TimeNs settle();
  void fail(const char* reason) noexcept;
  Status failure() const;
  bool has_inbox() const;
  void take_inbox();
  void drop_cancelled(Direction& direction);
  void end_queued(Direction& direction, const Status& status);
  // A few of them; whether there were any.
  bool submit_chunks(Direction& direction);
  bool take_next(Direction& direction);
  bool can_wait(TransferJob& job);
  void prepare_job(TransferJob& job);
  bool take_ring(const TransferJob& job);
  Status begin_job(TransferJob& job);
  Status choose_method(TransferJob& job);
  Status check_memory(const Attachment& attachment);
  MethodSet allowed_methods(const TransferJob& job) const;
  void publish_done(TransferJob& job, Direction& direction);
  void end_jobs(Direction& direction);
  bool has_left_pipe(const TransferJob& job);
  void end_job(const JobPointer& job);
  // Hands out what on_result calls are due.
  void deliver_results();
  void fill_result(TransferJob& job, TransferResult& result);
  void release_events(TransferJob& job);

  // Constant after start().
  Device& device_;
  Clock& clock_;
  const TransferOptions options_;
  const DeviceInfo device_info_;
  PageLockedRanges ranges_;  // These have their own mutexes.
  HostMemoryLocker locker_;
  std::thread thread_;

  // Of the engine's thread.
  std::array<Direction, kNumDirections> directions_;
  std::vector<bool> is_block_seen_;  // By block id, all false between uses; kept for its memory.
  std::deque<JobPointer> ended_;     // With an on_result that was not called yet.
  bool is_failing_ = false;          // As has_failed_, seen without the mutex.

  // Guarded by mutex_, with which no call of the device is made: a driver may hold it up.
  mutable std::mutex mutex_;
  std::condition_variable thread_woken_;
  std::condition_variable jobs_changed_;
  std::map<AttachmentId, std::shared_ptr<const Attachment>> attachments_;
  std::map<TransferJobId, JobPointer> jobs_;  // Not polled yet.
  std::deque<JobPointer> inbox_;
  MethodModel model_;
  TransferStats stats_;
  std::string note_;
  TransferJobId last_job_id_ = 0;
  AttachmentId last_attachment_id_ = 0;
  std::size_t num_running_ = 0;      // Jobs that have not ended.
  std::size_t num_order_waits_ = 0;  // Callers that wait for a job's done event.
  bool is_woken_ = false;
  bool is_asleep_ = false;  // The thread, or about to be, with the mutex held until it is.
  bool is_closed_ = false;
  bool is_stopped_ = false;  // The thread is to leave.
  bool has_left_ = true;     // There is no thread.
  bool is_locker_stopped_ = false;
  bool has_failed_ = false;  // An exception went through the thread's work; it only settles.
  Status failure_{StatusCode::kInternal, "transfer engine failed"};
};

template <typename Predicate>
bool TransferEngine::Impl::wait_for(std::unique_lock<std::mutex>& lock, TimeNs deadline_ns,
                                    const Predicate& is_done) {
  if (!options_.has_thread && !is_done()) {
    lock.unlock();
    advance();
    lock.lock();
    return is_done();
  }
  while (!is_done()) {
    const TimeNs now_ns = clock_.now_ns();
    // Without a thread that works, nothing gets any further.
    if (now_ns >= deadline_ns || is_stopped_) return false;
    jobs_changed_.wait_for(lock, piece_until(now_ns, deadline_ns));
  }
  return true;
}

}  // namespace kvtier::transfer
