// What a store tells of itself: who keeps blocks from eviction, how long calls took, and all of it
// to other processes. Guarded by the mutex but for holders().
#include <algorithm>
#include <cstddef>

#include "format/live_file.h"
#include "store/running_job.h"

namespace kvtier {

/// Leases and jobs, each kind with its oldest first.
std::vector<Holder> Store::Impl::holders(std::size_t num_max) {
  Locked locked(*this);
  if (!is_open_) return {};
  leases_.expire(seams_.clock->now_ns());
  return collect_holders(num_max);
}

std::vector<Holder> Store::Impl::collect_holders(std::size_t num_max) const {
  std::vector<Holder> holders;
  for (const auto& [lease_id, lease] : leases_.leases()) {
    if (holders.size() == num_max) break;
    const std::uint32_t namespace_index = index_.at(lease.items.front().entry).namespace_index;
    const std::uint64_t num_bytes =
        lease.items.size() * namespaces_.at(namespace_index).block_bytes;
    holders.push_back({"lease", lease.owner, lease_id, lease.items.size(), num_bytes,
                       lease.since_ns, lease.expires_ns});
  }
  std::vector<const RunningJob*> runs;
  runs.reserve(jobs_.size());
  for (const auto& [job_id, run] : jobs_) runs.push_back(run.get());
  const std::size_t num_listed = std::min(num_max, runs.size());
  const auto is_older = [](const RunningJob* one, const RunningJob* other) {
    return one->job->job_id() < other->job->job_id();
  };
  std::partial_sort(runs.begin(), runs.begin() + static_cast<std::ptrdiff_t>(num_listed),
                    runs.end(), is_older);
  for (std::size_t i = 0; i < num_listed; ++i) {
    const RunningJob& run = *runs[i];
    const char* kind = run.is_listed ? job_kind_word(run.job->kind()) : "prefetch";
    holders.push_back({kind,
                       {},
                       run.job->job_id(),
                       run.keys.size(),
                       run.num_bytes,
                       run.start_ns.value_or(seams_.clock->now_ns()),
                       kNeverNs});
  }
  return holders;
}

LatencyStats& Store::Impl::latency_of(Job::Kind kind) {
  switch (kind) {
    case Job::Kind::kPut:
      return stats_.put_latency;
    case Job::Kind::kSave:
      return stats_.save_latency;
    case Job::Kind::kLoad:
      return stats_.load_latency;
    case Job::Kind::kGet:
      break;
  }
  return stats_.get_latency;
}

LiveState Store::Impl::live_state(TimeNs now_ns) {
  LiveState state;
  state.now_ns = now_ns;
  state.is_closing = is_closing_;
  state.stats = collect_stats();
  state.holders = collect_holders(store::LivePublisher::kHoldersMax);
  return state;
}

/// Has the state told when its time has come. Returns when that is.
TimeNs Store::Impl::publish(TimeNs now_ns) {
  if (!publisher_ || is_closing_ || is_directory_lost_) return kNeverNs;
  if (now_ns < publisher_->due_ns()) return publisher_->due_ns();
  const disk::DiskJobId job_id = engine_->run_aside(publisher_->begin(live_state(now_ns)));
  tasks_.emplace(job_id, [this](const Status& status) {
    if (!publisher_->finish(status, seams_.clock->now_ns())) return;
    log("warning", "other processes cannot see the store's state, blocks are not concerned: " +
                       status.message() + " path=" + options_.path + "/" + format::kLiveFileName);
  });
  return kNeverNs;
}

/// Tells the last state: that the store closes. Where the disk is in trouble nobody waits for that.
void Store::Impl::tell_end(Locked& locked, TimeNs deadline_ns) {
  if (publisher_->is_writing() || !disk_->is_readable() || is_directory_lost_ || is_failed_) return;
  const TimeNs now_ns = seams_.clock->now_ns();
  (void)run_task(locked, deadline_ns, publisher_->begin(live_state(now_ns))).is_ok();
}

}  // namespace kvtier
