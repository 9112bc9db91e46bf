// How the transfer engine's thread ends jobs: results, sums, events. Thread safety: see the header
// of the implementation.
#include <string>
#include <utility>

#include "transfer/transfer_engine_impl.h"

namespace kvtier::transfer {

// Whether nothing of the job is on the device any more.
bool TransferEngine::Impl::has_left_pipe(const TransferJob& job) {
  if (job.num_chunks_in_flight > 0) return false;
  const bool has_stopped = !job.status.is_ok() || job.is_cancelled.load(std::memory_order_relaxed);
  if (!job.is_submitted()) return has_stopped;
  if (job.done == nullptr) return true;
  const Result<bool> is_done = device_.query_event(job.done->event());
  return !is_done.is_ok() || is_done.value();
}

void TransferEngine::Impl::end_jobs(Direction& direction) {
  for (std::size_t index = 0; index < direction.active.size();) {
    const JobPointer job = direction.active[index];
    if (!has_left_pipe(*job)) {
      ++index;
      continue;
    }
    if (direction.current == job) direction.current = nullptr;
    end_job(job);
    direction.active.erase(direction.active.begin() + static_cast<std::ptrdiff_t>(index));
  }
}

void TransferEngine::Impl::end_job(const JobPointer& job) {
  TransferResult result;
  fill_result(*job, result);
  const auto direction = static_cast<std::size_t>(job->direction);
  const auto method = static_cast<std::size_t>(job->method);
  // From here on nothing may throw: a job ends once.
  if (job->on_result != nullptr) ended_.push_back(job);
  // Given back with no mutex held: the device has its own, and may be making an event.
  release_events(*job);
  std::shared_ptr<const ReadyPoint> done;
  std::lock_guard<std::mutex> lock(mutex_);
  if (result.status.is_ok() || result.status.code() == StatusCode::kCorrupt) {
    const FragmentTable& table = job->attachment->table;
    ++stats_.jobs[direction][method];
    stats_.moved_bytes[direction][method] += result.moved_bytes;
    model_.correct(job->direction, job->method, table.block_bytes() / table.fragments().size(),
                   job->num_bytes(), result.device_ns);
  }
  if (result.status.code() == StatusCode::kCorrupt) {
    stats_.corrupt_blocks += result.undefined_block_ids.size();
  } else if (result.status.code() == StatusCode::kCancelled) {
    ++stats_.cancelled_jobs;
  } else if (!result.status.is_ok()) {
    ++stats_.failed_jobs;
  }
  stats_.bounced_bytes = 0;
  for (const Direction& each : directions_) stats_.bounced_bytes += each.pipe->bounced_bytes();
  done = std::move(job->done);
  job->result = std::move(result);
  job->sums.reset();
  job->is_ended = true;
  if (job->on_result == nullptr) {
    --num_running_;
  } else {
    // It runs until it was called: what a closed engine's callers take down may be what is called.
    jobs_.erase(job->job_id);
  }
  jobs_changed_.notify_all();
}

void TransferEngine::Impl::deliver_results() {
  while (!ended_.empty()) {
    // Off the list first: it is called once, whatever happens.
    const JobPointer job = std::move(ended_.front());
    ended_.pop_front();
    try {
      job->on_result(std::move(job->result));
    } catch (...) {
      fail("who received a result threw an exception");
    }
    job->on_result = nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    --num_running_;
    jobs_changed_.notify_all();
  }
}

void TransferEngine::Impl::fill_result(TransferJob& job, TransferResult& result) {
  result.job_id = job.job_id;
  result.direction = job.direction;
  result.method = job.method;
  result.status = job.status;
  if (result.status.is_ok() && !job.is_submitted()) {
    result.status = Status(StatusCode::kCancelled, "job was cancelled");
  }
  if (!result.status.is_ok()) {
    // Which of them were reached is not worth knowing: none can be relied on.
    if (job.direction == TransferDirection::kLoad) result.undefined_block_ids = job.block_ids;
    return;
  }
  result.moved_bytes = job.num_bytes();
  if (job.done != nullptr && job.has_begun) {
    const Result<TimeNs> elapsed_ns = device_.elapsed_ns(job.begin, job.done->event());
    if (elapsed_ns.is_ok()) result.device_ns = elapsed_ns.value();
  }
  if (!job.is_hashed()) return;
  result.checksums = job.sums->take_checksums();
  for (const std::size_t block : job.sums->wrong_blocks()) {
    result.undefined_block_ids.push_back(job.block_ids[block]);
  }
  if (result.undefined_block_ids.empty()) return;
  result.status =
      Status(StatusCode::kCorrupt,
             "loaded blocks are not what was saved: num_blocks=" +
                 std::to_string(result.undefined_block_ids.size()) +
                 " first_block_id=" + std::to_string(result.undefined_block_ids.front()));
}

void TransferEngine::Impl::release_events(TransferJob& job) {
  job.ready.reset();
  device_.destroy_event(job.begin);
  job.begin = {};
}

}  // namespace kvtier::transfer
