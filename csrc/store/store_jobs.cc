// Who drives puts and gets: the calling thread, or as jobs the copy pool, a step at a time.
// Thread-safe.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <numeric>

#include "base/wait_piece.h"
#include "store/running_job.h"

namespace kvtier {
namespace {

// Jobs that have not ended. Beyond it a new one ends at once: DECLINED or MISS for all its blocks.
constexpr std::size_t kJobsMax = 4096;
// Ended jobs that nobody keeps wait for poll up to this number, the newest ones.
constexpr std::size_t kListedJobsMax = 4096;

}  // namespace

Result<const store::Namespace*> Store::Impl::begin_call(std::uint32_t namespace_index) {
  if (Status open = check_open(); !open.is_ok()) return open;
  auto known = find_namespace(namespace_index);
  if (known.is_ok()) leases_.expire(seams_.clock->now_ns());
  return known;
}

/// Runs a flow in this thread, which blocks while the flow waits.
Store::Impl::Outcomes Store::Impl::drive(Flow& flow, Task<Outcomes> task, Locked& locked,
                                         LatencyStats& latency) {
  const TimeNs start_ns = seams_.clock->now_ns();
  ++num_calls_;
  flow.set_lock(locked.lock());
  task.start();
  while (!task.is_done()) {
    submit_io();
    ++num_waiting_;
    (void)seams_.executor->wait(
        locked.lock(), [this, &flow] { return flow.look() || is_cut_short_ || is_failed_; },
        flow.deadline_ns());
    --num_waiting_;
    if (is_cut_short_) notify_waiters();  // close() waits for the last one.
    flow.resume();
  }
  Outcomes outcomes = task.take();
  latency.add(seams_.clock->now_ns() - start_ns);
  --num_calls_;
  changed();
  return outcomes;
}

Result<std::shared_ptr<Job>> Store::Impl::put_async(const PutRequest& request,
                                                    std::function<void()> on_end) {
  Locked locked(*this);
  const auto space = begin_call(request.namespace_index);
  if (!space.is_ok()) return space.status();
  auto run = make_job(request.keys, Job::Kind::kPut, StepPriority::kSave);
  run->on_end = std::move(on_end);
  run->sources.assign(request.sources.begin(), request.sources.end());
  PutRequest owned = request;
  owned.keys = run->keys;
  owned.sources = run->sources;
  run->task = run_put(owned, *space.value(), nullptr, run->flow);
  ++stats_.jobs.puts;
  run->num_bytes = run->keys.size() * space.value()->block_bytes;
  return start_job(std::move(run), locked);
}

Result<std::shared_ptr<Job>> Store::Impl::get_async(const GetRequest& request,
                                                    std::function<void()> on_end) {
  Locked locked(*this);
  const auto space = begin_call(request.namespace_index);
  if (!space.is_ok()) return space.status();
  auto run = make_job(request.keys, Job::Kind::kGet, StepPriority::kLoad);
  run->on_end = std::move(on_end);
  run->targets.assign(request.targets.begin(), request.targets.end());
  GetRequest owned = request;
  owned.keys = run->keys;
  owned.targets = run->targets;
  run->task = run_get(owned, *space.value(), run->flow);
  ++stats_.jobs.gets;
  run->num_bytes = run->keys.size() * space.value()->block_bytes;
  return start_job(std::move(run), locked);
}

Result<std::shared_ptr<Job>> Store::Impl::save_async(const SaveRequest& request,
                                                     std::function<void()> on_end) {
  Locked locked(*this);
  const auto space = begin_call(request.namespace_index);
  if (!space.is_ok()) return space.status();
  auto run = make_job(request.keys, Job::Kind::kSave, StepPriority::kSave, request.mover);
  run->on_end = std::move(on_end);
  const PutRequest put{request.namespace_index, run->keys,        {},
                       request.parent,          request.is_chain, request.request_hash,
                       request.timeout_ns};
  run->task = run_put(put, *space.value(), request.mover.get(), run->flow);
  ++stats_.jobs.saves;
  run->num_bytes = run->keys.size() * space.value()->block_bytes;
  return start_job(std::move(run), locked);
}

Result<std::shared_ptr<Job>> Store::Impl::load_async(const LoadRequest& request,
                                                     std::function<void()> on_end) {
  Locked locked(*this);
  const auto space = begin_call(request.namespace_index);
  if (!space.is_ok()) return space.status();
  auto run = make_job(request.keys, Job::Kind::kLoad, StepPriority::kLoad, request.mover);
  run->on_end = std::move(on_end);
  const GetRequest get{request.namespace_index, run->keys,         {}, request.is_prefix,
                       request.request_hash,    request.timeout_ns};
  run->task = run_load(get, *space.value(), *request.mover, run->undefined_indices, run->flow);
  ++stats_.jobs.loads;
  run->num_bytes = run->keys.size() * space.value()->block_bytes;
  return start_job(std::move(run), locked);
}

/// Queues as many blocks as a quarter of the host tier holds, less what is queued already.
Status Store::Impl::prefetch(std::uint32_t namespace_index, std::span<const BlockKey> keys) {
  Locked locked(*this);
  const auto known = begin_call(namespace_index);
  if (!known.is_ok()) return known.status();
  const Namespace& space = *known.value();
  if (!disk_ || !space.host_class || is_failed_) return Status::ok();
  std::vector<BlockKey> wanted;
  std::uint64_t num_bytes = 0;
  for (const auto& [entry, tier] : resolve(namespace_index, keys, false)) {
    if (tier != Tier::kDisk) continue;
    if (prefetch_bytes_ + num_bytes + space.slot_bytes > options_.host_bytes / 4) break;
    wanted.push_back(index_.at(entry).key);
    num_bytes += space.slot_bytes;
  }
  if (wanted.empty()) return Status::ok();
  const TimeNs deadline_ns = seams_.clock->now_ns() + options_.default_timeout_ns;
  auto run = make_job(wanted, Job::Kind::kGet, StepPriority::kPrefetch);
  run->is_listed = false;
  run->prefetch_bytes = num_bytes;
  prefetch_bytes_ += num_bytes;
  stats_.jobs.prefetch_blocks += wanted.size();
  run->num_bytes = num_bytes;
  run->task = run_prefetch(run->keys, namespace_index, deadline_ns, run->flow);
  (void)start_job(std::move(run), locked);
  return Status::ok();
}

std::shared_ptr<Store::Impl::RunningJob> Store::Impl::make_job(std::span<const BlockKey> keys,
                                                               Job::Kind kind,
                                                               StepPriority priority,
                                                               std::shared_ptr<BlockMover> mover) {
  auto run = std::make_shared<RunningJob>();
  run->job = std::make_shared<Job>(job_id_next_++, kind, std::move(mover));
  run->priority = priority;
  if (priority == StepPriority::kSave) run->refusal = Outcome::kDeclined;
  run->keys.assign(keys.begin(), keys.end());
  return run;
}

/// Plans in the submitter's thread, so that jobs depend on each other in order of submission; the
/// bytes are the pool's.
std::shared_ptr<Job> Store::Impl::start_job(std::shared_ptr<RunningJob> run, Locked& locked) {
  RunningJob& started = *run;
  const std::shared_ptr<Job> job = started.job;
  ++num_calls_;
  const bool is_refused = jobs_.size() >= kJobsMax;
  jobs_.emplace(job->job_id(), std::move(run));
  if (is_refused) {
    ++stats_.jobs.refused;
    if (started.priority == StepPriority::kLoad) stats_.get_blocks += started.keys.size();
    if (started.priority == StepPriority::kSave) {
      (host_->is_present() ? host_space_ : disk_space_).stats.declined += started.keys.size();
    }
    end_job(started, Status::ok(), Outcomes(started.keys.size(), started.refusal));
  } else {
    started.start_ns = seams_.clock->now_ns();
    advance_job(started, locked);
  }
  return job;
}

void Store::Impl::step_job(RunningJob& run) {
  Locked locked(*this);
  advance_job(run, locked);
}

/// Runs the job until it waits, gives way or ends.
void Store::Impl::advance_job(RunningJob& run, Locked& locked) {
  run.flow.set_lock(locked.lock());
  bool is_waiting = false;
  try {
    // What the job waited for may have gone again before its turn came.
    is_waiting = run.is_started && !run.flow.is_giving_way() && !is_wait_over(run.flow);
    if (is_waiting) return suspend(run);
    if (std::exchange(run.is_started, true)) {
      run.flow.resume();
    } else {
      run.task.start();
    }
    if (run.task.is_done()) return end_job(run, run.failure, run.task.take());
    // Where nothing is waited for any more, as in a store that has failed, nobody would wake it.
    is_waiting = !run.flow.is_giving_way() && !is_wait_over(run.flow);
  } catch (const std::exception& error) {
    if (!locked.lock().owns_lock()) locked.lock().lock();
    return break_job(run, error.what());
  }
  if (is_waiting) return suspend(run);
  post_job(run);
}

/// What the job held stays held: the store is failed, and nothing of it is trusted any more. But it
/// has not ended while a mover touches its buffers.
void Store::Impl::break_job(RunningJob& run, const std::string& reason) {
  note_failure(reason);
  run.failure = Status(StatusCode::kInternal, reason);
  if (run.job->kind() == Job::Kind::kLoad) {
    run.undefined_indices.resize(run.keys.size());
    std::iota(run.undefined_indices.begin(), run.undefined_indices.end(), std::size_t{0});
  }
  run.task = outlast_moves(run.keys.size(), run.flow);
  run.task.start();
  if (run.task.is_done()) return end_job(run, run.failure, run.task.take());
  suspend(run);
}

Task<Store::Impl::Outcomes> Store::Impl::outlast_moves(std::size_t num_blocks, Flow& flow) {
  const auto are_ended = [&flow] { return flow.num_moves() == 0; };
  co_await store::WaitToTheEnd(flow, are_ended);
  co_return Outcomes(num_blocks, Outcome::kFailed);
}

void Store::Impl::suspend(RunningJob& run) {
  suspended_jobs_.push_back(&run);
  if (run.flow.deadline_ns() < next_job_ns_) {
    next_job_ns_ = run.flow.deadline_ns();
    seams_.executor->wake();
  }
}

bool Store::Impl::is_wait_over(Flow& flow) {
  const bool is_met = flow.look();
  if (flow.is_patient()) return is_met;
  return is_met || is_cut_short_ || is_failed_ || flow.is_cancelled() ||
         seams_.clock->now_ns() >= flow.deadline_ns();
}

void Store::Impl::post_job(RunningJob& run) {
  // One step of a job at a time, and a job lives until its last step: the reference stays good.
  seams_.executor->post(run.priority, [this, &run] { step_job(run); });
}

void Store::Impl::end_job(RunningJob& run, Status status, Outcomes outcomes) {
  if (run.flow.is_cancelled()) ++stats_.jobs.cancelled;
  ++stats_.jobs.ended;
  if (run.is_listed && run.start_ns) {
    latency_of(run.job->kind()).add(seams_.clock->now_ns() - *run.start_ns);
  }
  prefetch_bytes_ -= run.prefetch_bytes;
  if (run.job->mover()) run.job->mover()->finish_starting();
  run.job->end(std::move(status), std::move(outcomes), std::move(run.undefined_indices));
  if (run.on_end) run.on_end();
  if (run.is_listed) list_job(run.job);
  jobs_.erase(run.job->job_id());
  --num_calls_;
  changed();
}

void Store::Impl::list_job(std::shared_ptr<Job> job) {
  if (listed_jobs_.empty() && job_event_fd_ >= 0) (void)eventfd_write(job_event_fd_, 1);
  listed_jobs_.push_back(std::move(job));
  if (listed_jobs_.size() <= std::max(listed_jobs_max_, 2 * kListedJobsMax)) return;
  // Those that somebody keeps are his cost, and stay. The rest is cut back to the newest.
  std::size_t num_older = listed_jobs_.size() - kListedJobsMax;
  std::erase_if(listed_jobs_, [&num_older](const std::shared_ptr<Job>& listed) {
    const bool is_older = num_older > 0;
    if (is_older) --num_older;
    return is_older && listed.use_count() == 1;
  });
  listed_jobs_max_ = 2 * listed_jobs_.size();
}

/// Posts the suspended jobs whose wait is over. Returns when it wants to look again.
TimeNs Store::Impl::resume_jobs(TimeNs now_ns) {
  if (!is_changed_ && now_ns < next_job_ns_) return next_job_ns_;
  is_changed_ = false;
  next_job_ns_ = kNeverNs;
  std::erase_if(suspended_jobs_, [&](RunningJob* run) {
    bool is_over = true;
    try {
      is_over = is_wait_over(run->flow);
    } catch (const std::exception&) {
      // It will throw again where the job is driven, which ends the job.
    }
    if (is_over) {
      post_job(*run);
    } else {
      next_job_ns_ = std::min(next_job_ns_, run->flow.deadline_ns());
    }
    return is_over;
  });
  return next_job_ns_;
}

Status Store::Impl::wait_job(const Job& job, TimeNs timeout_ns) {
  if (job.is_ended()) return Status::ok();
  Locked locked(*this);
  const TimeNs deadline_ns = deadline_after(seams_.clock->now_ns(), timeout_ns);
  ++num_waiting_;
  // Not cut short by close(): that ends the job as well.
  (void)seams_.executor->wait(
      locked.lock(), [this, &job] { return job.is_ended() || !is_open_; }, deadline_ns);
  --num_waiting_;
  if (is_cut_short_) notify_waiters();
  if (job.is_ended()) return Status::ok();
  if (!is_open_) return check_open();
  return Status(StatusCode::kTimeout, "the job goes on: job_id=" + std::to_string(job.job_id()));
}

Status Store::Impl::cancel_job(const Job& job) {
  Locked locked(*this);
  const auto found = jobs_.find(job.job_id());
  if (found == jobs_.end() || found->second->job.get() != &job) return Status::ok();  // Ended.
  found->second->flow.cancel();
  changed();
  return Status::ok();
}

/// Nobody waits any more for moves that will not be started.
void Store::Impl::release_order_waits() {
  for (const auto& [job_id, run] : jobs_) {
    if (run->job->mover()) run->job->mover()->finish_starting();
  }
}

void Store::Impl::cancel_jobs(JobChoice choice) {
  for (const auto& [job_id, run] : jobs_) {
    if (choice == JobChoice::kAll || run->priority != StepPriority::kSave) run->flow.cancel();
  }
  changed();
}

Result<std::vector<std::shared_ptr<Job>>> Store::Impl::poll_jobs() {
  Locked locked(*this);
  if (Status open = check_open(); !open.is_ok()) return open;
  std::vector<std::shared_ptr<Job>> jobs(listed_jobs_.begin(), listed_jobs_.end());
  listed_jobs_.clear();
  listed_jobs_max_ = 0;
  eventfd_t value = 0;
  if (job_event_fd_ >= 0) (void)eventfd_read(job_event_fd_, &value);
  return jobs;
}

Result<int> Store::Impl::job_event_fd() {
  Locked locked(*this);
  if (Status open = check_open(); !open.is_ok()) return open;
  if (job_event_fd_ < 0) {
    const unsigned int value = listed_jobs_.empty() ? 0 : 1;
    job_event_fd_ = eventfd(value, EFD_NONBLOCK | EFD_CLOEXEC);
    if (job_event_fd_ < 0) return Status::from_errno(errno, "cannot create eventfd");
  }
  return job_event_fd_;
}

void Store::Impl::fill_job_stats(JobStats& stats) const {
  stats.unfinished = jobs_.size();
  stats.suspended = suspended_jobs_.size();
  stats.listed = listed_jobs_.size();
  stats.prefetch_bytes_queued = prefetch_bytes_;
  stats.copy_threads = seams_.executor->num_copy_threads();
}

}  // namespace kvtier
