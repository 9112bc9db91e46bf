// The transfer engine's thread, from its start to its end. Thread-safe.
#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/blocked_signals.h"
#include "transfer/transfer_engine_impl.h"

namespace kvtier::transfer {
namespace {

// The thread looks at chunks in flight about so often; the system's default would make it late.
constexpr unsigned long kTimerSlackNs = 2000;
// How long the thread is waited for that has nothing left to do: a call of the driver may hold it.
constexpr TimeNs kStopGraceNs = kNsPerS;

}  // namespace

TransferEngine::Impl::Impl(Device& device, Clock& clock, const TransferOptions& options)
    : device_(device),
      clock_(clock),
      options_(options),
      device_info_(device.info()),
      ranges_(device),
      locker_(device, ranges_, options.has_thread),
      note_(device_info_.note) {}

// After stop(): there is no thread.
TransferEngine::Impl::~Impl() {
  for (auto& [job_id, job] : jobs_) release_events(*job);
  if (num_running_ == 0) {
    for (auto& [attachment_id, attachment] : attachments_) {
      device_.destroy_fragment_table(attachment->table_id);
    }
    return;
  }
  // What the device may still read or write must not be given back: another engine would get it.
  ranges_.abandon();
  for (Direction& direction : directions_) static_cast<void>(direction.pipe.release());
}

Status TransferEngine::Impl::start() {
  for (std::size_t index = 0; index < kNumDirections; ++index) {
    auto pipe =
        TransferPipe::create(device_, {static_cast<TransferDirection>(index), options_.chunk_bytes,
                                       options_.max_ctas, options_.are_saves_gentle});
    if (!pipe.is_ok()) return pipe.status();
    directions_[index].pipe = std::move(pipe).value();
    stats_.staging_bytes += directions_[index].pipe->staging_bytes();
  }
  if (!options_.has_thread) return Status::ok();
  const BlockedSignals blocked;
  has_left_ = false;
  try {
    thread_ = std::thread([this] { run_thread(); });
  } catch (const std::system_error& error) {
    has_left_ = true;
    return Status::from_errno(error.code().value(), "cannot start thread");
  }
  pthread_setname_np(thread_.native_handle(), "kvtier-transfer");
  return Status::ok();
}

void TransferEngine::Impl::run_thread() {
  ::prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  while (true) {
    const TimeNs next_ns = advance();
    std::unique_lock<std::mutex> lock(mutex_);
    is_asleep_ = true;
    while (!is_woken_ && !is_stopped_) {
      const TimeNs now_ns = clock_.now_ns();
      if (now_ns >= next_ns) break;
      thread_woken_.wait_for(lock, piece_until(now_ns, next_ns));
    }
    is_asleep_ = false;
    is_woken_ = false;
    if (!is_stopped_) continue;
    // With the mutex held: whoever sees it may destroy the mutex once it has joined.
    has_left_ = true;
    jobs_changed_.notify_all();
    return;
  }
}

void TransferEngine::Impl::wake_locked() {
  is_woken_ = true;
  thread_woken_.notify_one();
}

// What is still in flight goes on being looked after, by the thread or by whoever drives.
bool TransferEngine::Impl::close(TimeNs deadline_ns) {
  if (!is_this_process()) return true;
  locker_.cancel();
  std::unique_lock<std::mutex> lock(mutex_);
  is_closed_ = true;
  for (const auto& [job_id, job] : jobs_) job->is_cancelled.store(true, std::memory_order_relaxed);
  wake_locked();
  if (!wait_for(lock, deadline_ns, [this] { return num_running_ == 0; })) return false;
  return join_thread(lock, std::max(deadline_ns, clock_.now_ns() + kStopGraceNs));
}

bool TransferEngine::Impl::stop() {
  if (close(clock_.now_ns())) return true;
  std::unique_lock<std::mutex> lock(mutex_);
  if (join_thread(lock, clock_.now_ns() + kStopGraceNs)) return true;
  // Nobody joins them any more.
  if (thread_.joinable()) thread_.detach();
  locker_.leave();
  return false;
}

bool TransferEngine::Impl::join_thread(std::unique_lock<std::mutex>& lock, TimeNs deadline_ns) {
  is_stopped_ = true;
  thread_woken_.notify_one();
  jobs_changed_.notify_all();
  while (!has_left_) {
    const TimeNs now_ns = clock_.now_ns();
    if (now_ns >= deadline_ns) return false;
    jobs_changed_.wait_for(lock, piece_until(now_ns, deadline_ns));
  }
  std::thread thread = std::move(thread_);  // Of several closers one joins.
  lock.unlock();
  if (thread.joinable()) thread.join();
  const bool has_stopped = locker_.stop(clock_, deadline_ns);
  lock.lock();
  is_locker_stopped_ = has_stopped;
  return has_stopped;
}

bool TransferEngine::Impl::has_stopped() const {
  if (!is_this_process()) return true;
  std::lock_guard<std::mutex> lock(mutex_);
  return is_closed_ && has_left_ && is_locker_stopped_ && num_running_ == 0;
}

}  // namespace kvtier::transfer
