// The store's background work: results come in, plans go out. Never blocks; one thread at a time.
#include <algorithm>
#include <cerrno>

#include "store/store_impl.h"

namespace kvtier {
namespace {

// The directory is looked at this often.
constexpr TimeNs kWatchPauseNs = kNsPerS;

}  // namespace

TimeNs Store::Impl::pump() {
  Locked locked(*this);
  if (!is_open_) return kNeverNs;
  const TimeNs now_ns = seams_.clock->now_ns();
  leases_.expire(now_ns);
  TimeNs next_ns = leases_.next_expiry_ns();
  if (disk_ && !is_failed_) {
    finish_results(now_ns);
    if (direct_probe_.is_direct && !engine_->is_direct()) note_direct_lost();
    const Health health_before = disk_->health();
    next_ns = std::min(next_ns, disk_->step(now_ns));
    if (is_directory_lost_) {
      next_ns = std::min(next_ns, restart_directory(now_ns));
    } else {
      next_ns = std::min(next_ns, watch_directory(now_ns));
      writes_->step(now_ns);
      const bool can_write = disk_->is_readable();
      if (can_write) {
        const bool is_hurried = num_hurried_ > 0 || is_closing_;
        next_ns = std::min(next_ns, disk_->commits().step(now_ns, is_hurried, num_syncing_ > 0));
      }
    }
    next_ns = std::min(next_ns, publish(now_ns));
    if (disk_->health() != health_before) notify_waiters();
  }
  return std::min(next_ns, resume_jobs(now_ns));
}

void Store::Impl::note_direct_lost() {
  direct_probe_.is_direct = false;
  direct_probe_.reason =
      "direct operations were refused (errno=" + std::to_string(EINVAL) +
      ") that worked through the page cache; direct I/O is tried again at the next open";
  log("warning", "disk I/O is buffered, not direct: " + direct_probe_.reason);
}

void Store::Impl::finish_results(TimeNs now_ns) {
  std::vector<disk::DiskResult> results;
  engine_->poll(results);
  for (const disk::DiskResult& result : results) {
    if (loader_->finish(result, now_ns)) continue;
    if (writes_->finish(result, now_ns)) continue;
    const std::uint64_t num_failures = disk_->commits().num_failures();
    if (disk_->commits().finish(result, now_ns)) {
      // Payloads that cannot be committed are as good as not written.
      if (disk_->commits().num_failures() != num_failures) {
        disk_->note_write_result(result.status, now_ns);
      }
      continue;
    }
    if (disk_->finish(result)) continue;
    const auto task = tasks_.find(result.job_id);
    KVTIER_CHECK(task != tasks_.end());
    const auto on_end = std::move(task->second);
    tasks_.erase(task);
    on_end(result.status);
  }
  if (!results.empty()) notify_waiters();
}

bool Store::Impl::wait(Locked& locked, const std::function<bool()>& is_done, TimeNs deadline_ns) {
  submit_io();
  ++num_waiting_;
  (void)seams_.executor->wait(
      locked.lock(), [&] { return is_done() || is_cut_short_ || is_failed_; }, deadline_ns);
  --num_waiting_;
  if (is_cut_short_) notify_waiters();  // close() waits for the last one.
  return is_done();
}

Status Store::Impl::run_task(Locked& locked, TimeNs deadline_ns, std::function<Status()> task) {
  if (!wait(locked, [this] { return !is_task_running_; }, deadline_ns)) {
    return Status(StatusCode::kTimeout, "the disk did not answer in time");
  }
  is_task_running_ = true;
  auto answer = std::make_shared<std::optional<Status>>();
  tasks_.emplace(engine_->run_task(std::move(task)), [this, answer](const Status& status) {
    *answer = status;
    is_task_running_ = false;
  });
  seams_.executor->wake();
  if (!wait(locked, [answer] { return answer->has_value(); }, deadline_ns)) {
    return Status(StatusCode::kTimeout, "the disk did not answer in time");
  }
  return **answer;
}

/// Looks now and then whether the directory is still the one that was opened.
TimeNs Store::Impl::watch_directory(TimeNs now_ns) {
  if (is_watching_ || is_closing_ || !disk_->is_readable()) return kNeverNs;
  if (now_ns < watch_ns_) return watch_ns_;
  is_watching_ = true;
  Directory* directory = seams_.directory.get();
  const disk::DiskJobId job_id = engine_->run_task([directory] {
    return directory->is_present() ? Status::ok()
                                   : Status(StatusCode::kNotFound, "the directory is gone");
  });
  tasks_.emplace(job_id, [this](const Status& status) {
    is_watching_ = false;
    watch_ns_ = seams_.clock->now_ns() + kWatchPauseNs;
    if (status.is_ok() || status.code() == StatusCode::kCancelled || is_closing_) return;
    is_directory_lost_ = true;
    log("warning",
        "the directory of the disk tier vanished while it was in use; starting it anew: " +
            options_.path);
  });
  return kNeverNs;
}

/// Once no job runs any more: forgets what lay in the lost directory and opens a new one in its
/// place.
TimeNs Store::Impl::restart_directory(TimeNs now_ns) {
  if (is_watching_ || is_closing_ || is_task_running_) return kNeverNs;
  if (now_ns < watch_ns_) return watch_ns_;
  writes_->drop_backlog();
  if (engine_->num_jobs() > 0 || loader_->num_reading() > 0 || num_calls_ > 0) return kNeverNs;
  ClearResult dropped;
  leases_.release_all();
  drop_tier_copies(kDisk, dropped);
  if (disk_space_.slots.used_bytes() > 0) return kNeverNs;
  disk_->forget_segments();
  engine_->forget_segments();
  is_watching_ = true;
  is_task_running_ = true;
  auto records = std::make_shared<std::vector<format::NamespaceRecord>>();
  for (std::uint32_t i = 0; i < namespaces_.size(); ++i) {
    if (namespaces_.at(i).id.is_zero()) continue;  // The place of one that was never saved.
    records->push_back({i, namespaces_.at(i).id, namespaces_.at(i).description});
  }
  const disk::DiskJobId job_id = engine_->run_task([this, records] {
    if (Status reopened = seams_.directory->reopen(); !reopened.is_ok()) return reopened;
    if (Status locked = store_directory_->lock(*seams_.clock, 0); !locked.is_ok()) return locked;
    store_directory_->reset();
    if (Status removed = store_directory_->remove_all_files(); !removed.is_ok()) return removed;
    if (Status saved = store_directory_->save_superblock(false, 0); !saved.is_ok()) return saved;
    for (const auto& record : *records) {
      if (Status saved = store_directory_->add_namespace(record); !saved.is_ok()) return saved;
    }
    return Status::ok();
  });
  tasks_.emplace(job_id, [this](const Status& status) {
    is_watching_ = false;
    is_task_running_ = false;
    watch_ns_ = seams_.clock->now_ns() + kWatchPauseNs;
    if (status.is_ok()) {
      is_directory_lost_ = false;
      disk_->set_store_id(store_directory_->superblock().store_id);
      log("info", "the disk tier works again, empty");
    } else if (status.code() == StatusCode::kBusy) {
      // For good: what lies there by now is the other's, also after it let go of the lock.
      watch_ns_ = kNeverNs;
      disk_->turn_off("another process took the directory: " + status.message());
    } else if (status.code() != StatusCode::kCancelled) {
      log("warning", "cannot start the disk tier anew, will be tried again: " + status.message());
    }
  });
  return kNeverNs;
}

void Store::Impl::log(const char* level, std::string text) {
  const TimeNs now_ns = seams_.clock->now_ns();
  if (!log_limiter_.admit(text, now_ns)) return;
  if (publisher_) publisher_->note_line(level, text, now_ns);
  log_lines_.emplace_back(level, std::move(text));
}

/// Called without the mutex: the receiver may take locks of its own.
void Store::Impl::hand_over_log() {
  std::vector<std::pair<std::string, std::string>> lines;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    lines.swap(log_lines_);
  }
  if (!seams_.log) return;
  for (const auto& [level, text] : lines) seams_.log(level.c_str(), text);
}

}  // namespace kvtier
