// Closing a store: the backlog, the clean mark, and what to do when the kernel does not answer.
// Thread-safe.
#include <unistd.h>

#include <algorithm>

#include "store/store_impl.h"

namespace kvtier {
namespace {

// For the copies of calls that are under way; their waits are cut short.
constexpr TimeNs kCallsEndNs = 60 * kNsPerS;
constexpr TimeNs kFailedCallsEndNs = kNsPerS;
// For moves that were asked to end.
constexpr TimeNs kMovesEndNs = kNsPerS;
// Even a close without patience gives running operations this long, so that it can end cleanly.
constexpr TimeNs kStopMinNs = 500 * kNsPerMs;

}  // namespace

Store::Impl::~Impl() {
  if (is_abandoned()) return;
  (void)close(0).is_ok();
  if (job_event_fd_ >= 0) ::close(job_event_fd_);
}

Status Store::Impl::close(TimeNs timeout_ns) {
  Locked locked(*this);
  if (!is_open_) return Status::ok();
  const TimeNs deadline_ns = seams_.clock->now_ns() + timeout_ns;
  if (is_closing_) {  // Another thread closes: end when it has.
    const auto is_closed = [this] { return !is_open_; };
    (void)seams_.executor->wait(locked.lock(), is_closed, deadline_ns);
    return Status::ok();
  }
  is_closing_ = true;
  leases_.release_all();
  // Puts may still add to the backlog; nobody can use what is read now.
  cancel_jobs(JobChoice::kLoads);
  Status written = disk_ && !is_failed_ ? write_backlog(locked, deadline_ns) : Status::ok();
  if (publisher_ && !options_.is_deleted_on_exit) tell_end(locked, deadline_ns);
  is_cut_short_ = true;
  cancel_jobs(JobChoice::kAll);
  const auto are_calls_over = [this] { return num_calls_ == 0 && num_waiting_ == 0; };
  // A call that broke an invariant never ends, and neither does a move behind a device that stands.
  const TimeNs now_ns = seams_.clock->now_ns();
  const TimeNs moves_end_ns = std::max(deadline_ns, now_ns + kMovesEndNs);
  bool is_quiet = seams_.executor->wait(locked.lock(), are_calls_over, moves_end_ns);
  if (!is_quiet && num_moves_ == 0) {
    const TimeNs calls_end_ns = now_ns + (is_failed_ ? kFailedCallsEndNs : kCallsEndNs);
    is_quiet = seams_.executor->wait(locked.lock(), are_calls_over, calls_end_ns);
  }
  if (!is_quiet) release_order_waits();
  is_open_ = false;
  is_stuck_ = !is_quiet;
  changed();
  locked.lock().unlock();
  stop_background(std::max(deadline_ns, seams_.clock->now_ns() + kStopMinNs), is_quiet);
  return written;
}

/// Writes what is queued, commits, syncs and marks the directory clean when all of that worked in
/// time; then saves what is known of uses.
Status Store::Impl::write_backlog(Locked& locked, TimeNs deadline_ns) {
  // Calls that began before the close still add to the backlog; half of the time is for them.
  const TimeNs now_ns = seams_.clock->now_ns();
  const TimeNs calls_end_ns = now_ns + std::max<TimeNs>(0, deadline_ns - now_ns) / 2;
  (void)wait(locked, [this] { return num_calls_ == 0; }, calls_end_ns);
  const std::uint64_t mark = writes_->mark();
  seams_.executor->wake();
  const auto is_drained = [&] {
    return writes_->is_drained(mark) || !disk_->is_writable(seams_.clock->now_ns());
  };
  (void)wait(locked, is_drained, deadline_ns);
  const std::size_t num_dropped = writes_->drop_backlog();
  const bool is_on_time =
      wait(locked, [this] { return writes_->num_in_flight() == 0; }, deadline_ns);
  const std::size_t num_missing = num_dropped + writes_->num_unfinished();
  if (num_missing > 0) {
    log("warning",
        "closed before everything was on disk: num_blocks=" + std::to_string(num_missing));
  }
  if (!is_on_time || !disk_->is_readable()) return Status::ok();
  if (options_.is_deleted_on_exit) {
    // It would bring back a file that is removed; none is begun any more.
    if (publisher_) (void)wait(locked, [this] { return !publisher_->is_writing(); }, deadline_ns);
    return run_task(locked, deadline_ns, [this] { return store_directory_->remove_all_files(); });
  }
  // A commit that fails leaves the directory marked unclean; the data that is there stays good.
  if (!commit_and_sync(locked, deadline_ns).is_ok()) return Status::ok();
  const std::uint64_t generation = disk_->generation();
  const Status marked = run_task(locked, deadline_ns, [this, generation] {
    return store_directory_->save_superblock(true, generation);
  });
  // With what time is left: the next open does without.
  if (marked.is_ok()) save_uses(locked, deadline_ns);
  return Status::ok();
}

void Store::Impl::stop_background(TimeNs deadline_ns, bool is_quiet) {
  const bool is_stopped = !seams_.io_engine || seams_.io_engine->stop(deadline_ns);
  seams_.executor->stop();
  // Calls that are not over may still be copying.
  if (!is_stopped || !is_quiet) {
    leak_what_the_kernel_holds();
    return;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  tasks_.clear();
  loader_.reset();
  writes_.reset();
  disk_.reset();
  engine_.reset();
  store_directory_.reset();
  seams_.io_engine.reset();
  seams_.directory.reset();
  staging_.reset();
  host_.reset();
}

/// Operations that the kernel has not finished still write into our memory and hold the lock's
/// directory: both stay until the process ends, so that the next open is refused instead of racing
/// with them.
void Store::Impl::leak_what_the_kernel_holds() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (host_) host_->arena()->leak();
  if (staging_) staging_->arena()->leak();
  (void)engine_.release();
  (void)store_directory_.release();
  (void)seams_.io_engine.release();
  (void)seams_.directory.release();
}

void Store::Impl::abandon_after_fork() {
  is_abandoned_.store(true, std::memory_order_release);
  if (seams_.directory) seams_.directory->close_after_fork();
  if (seams_.io_engine) seams_.io_engine->close_after_fork();
  if (host_) host_->arena()->close_after_fork();
  if (staging_) staging_->arena()->close_after_fork();
}

bool Store::Impl::close_for_good() {
  (void)close(0).is_ok();
  std::lock_guard<std::mutex> lock(mutex_);
  return is_stuck_;
}

void Store::Impl::fail(const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  note_failure(reason);
}

void Store::Impl::note_failure(const std::string& reason) {
  if (is_failed_) return;
  is_failed_ = true;
  log("error", "the store is failed and answers MISS from now on: " + reason);
  changed();
}

}  // namespace kvtier
