// What callers do with a transfer engine's insides. Thread-safe.
#include <string>
#include <utility>

#include "transfer/transfer_engine_impl.h"

namespace kvtier::transfer {
namespace {

Status refused(const std::string& reason) {
  return Status(StatusCode::kInvalidArgument, "cannot transfer blocks: " + reason);
}

}  // namespace

Status TransferEngine::Impl::check_request(const TransferRequest& request,
                                           const Attachment& attachment) const {
  if (request.ready != nullptr && !request.ready->is_of(device_)) {
    return refused("the ready point is of another device");
  }
  if (static_cast<std::size_t>(request.direction) >= kNumDirections) {
    return refused("no such direction: direction=" +
                   std::to_string(static_cast<unsigned>(request.direction)));
  }
  if (request.method > TransferMethod::kAuto) {
    return refused("no such method: method=" +
                   std::to_string(static_cast<unsigned>(request.method)));
  }
  const std::size_t num_blocks = request.block_ids.size();
  const std::size_t num_sums = num_blocks * attachment.table.parts().size();
  if (num_blocks == 0) return refused("no blocks");
  if (request.slots.size() != num_blocks) {
    return refused("num_blocks=" + std::to_string(num_blocks) +
                   " num_slots=" + std::to_string(request.slots.size()));
  }
  if (!request.seeds.empty() && request.seeds.size() != num_blocks) {
    return refused("num_blocks=" + std::to_string(num_blocks) +
                   " num_seeds=" + std::to_string(request.seeds.size()));
  }
  const bool is_checked = request.direction == TransferDirection::kLoad && !request.seeds.empty();
  if (request.checksums.size() != (is_checked ? num_sums : 0)) {
    return refused("num_checksums=" + std::to_string(request.checksums.size()) + ", not " +
                   std::to_string(is_checked ? num_sums : 0));
  }
  for (std::size_t index = 0; index < num_blocks; ++index) {
    const std::int64_t block_id = request.block_ids[index];
    if (block_id < 0 || static_cast<std::uint64_t>(block_id) >= attachment.table.num_blocks()) {
      return refused("block out of range: index=" + std::to_string(index) +
                     " block_id=" + std::to_string(block_id) +
                     " num_blocks=" + std::to_string(attachment.table.num_blocks()));
    }
    if (request.slots[index] == nullptr) {
      return refused("slot without address: index=" + std::to_string(index));
    }
  }
  return Status::ok();
}

Result<TransferEngine::Impl::JobPointer> TransferEngine::Impl::make_job(
    const TransferRequest& request) {
  std::shared_ptr<const Attachment> attachment;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_) return Status(StatusCode::kClosed, "cannot transfer blocks: engine is closed");
    const auto found = attachments_.find(request.attachment_id);
    if (found != attachments_.end()) attachment = found->second;
  }
  if (attachment == nullptr) {
    return refused("unknown attachment: attachment_id=" + std::to_string(request.attachment_id));
  }
  Status good = check_request(request, *attachment);
  if (!good.is_ok()) return good;
  auto job = std::make_shared<TransferJob>();
  job->direction = request.direction;
  job->attachment = std::move(attachment);
  job->block_ids.assign(request.block_ids.begin(), request.block_ids.end());
  job->slots.assign(request.slots.begin(), request.slots.end());
  job->seeds.assign(request.seeds.begin(), request.seeds.end());
  job->expected.assign(request.checksums.begin(), request.checksums.end());
  job->wanted_method = request.method;
  job->ready = request.ready;
  job->on_result = request.on_result;
  return job;
}

Result<std::shared_ptr<const ReadyPoint>> TransferEngine::Impl::record_ready(StreamId stream) {
  Status usable = device_.failure();
  if (!usable.is_ok()) return usable;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_)
      return Status(StatusCode::kClosed, "cannot record ready point: engine is closed");
  }
  // In this very thread: the stream may be its own default one, and the order is that of the call.
  Result<Event> event = device_.create_event();
  if (!event.is_ok()) return event.status();
  auto ready = std::make_shared<const ReadyPoint>(device_, event.value());
  Status recorded = device_.record_event(ready->event(), stream);
  if (!recorded.is_ok()) return recorded;
  return ready;
}

Result<TransferJobId> TransferEngine::Impl::submit(const TransferRequest& request) {
  Status usable = device_.failure();
  if (!usable.is_ok()) return usable;
  Result<JobPointer> made = make_job(request);
  if (!made.is_ok()) return made.status();
  const JobPointer job = std::move(made).value();
  if (job->ready == nullptr) {
    Result<std::shared_ptr<const ReadyPoint>> ready = record_ready(request.stream);
    if (!ready.is_ok()) return ready.status();
    job->ready = std::move(ready).value();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  if (is_closed_ || jobs_.size() >= options_.num_jobs_max) {
    if (is_closed_) return Status(StatusCode::kClosed, "cannot transfer blocks: engine is closed");
    return Status(StatusCode::kExhausted,
                  "cannot transfer blocks: num_jobs_max=" + std::to_string(options_.num_jobs_max));
  }
  if (has_failed_) return failure_;
  // Its tensors may have been detached since they were looked up.
  const auto attached = attachments_.find(request.attachment_id);
  if (attached == attachments_.end() || attached->second != job->attachment) {
    return refused("unknown attachment: attachment_id=" + std::to_string(request.attachment_id));
  }
  const TransferJobId job_id = ++last_job_id_;
  job->job_id = job_id;
  const auto place = jobs_.emplace(job_id, job).first;
  try {
    inbox_.push_back(job);
  } catch (...) {
    jobs_.erase(place);
    throw;
  }
  ++num_running_;
  // A thread that is awake looks once more before it sleeps. One that is woken must not find the
  // mutex taken: both threads would pay for that.
  is_woken_ = true;
  const bool is_asleep = is_asleep_;
  lock.unlock();
  if (is_asleep) thread_woken_.notify_one();
  return job_id;
}

Status TransferEngine::Impl::begin_host_memory(std::span<std::byte> memory) {
  Status begun = locker_.begin(memory);
  std::lock_guard<std::mutex> lock(mutex_);
  wake_locked();
  return begun;
}

void TransferEngine::Impl::cancel(TransferJobId job_id) {
  if (!is_this_process()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end()) return;
  found->second->is_cancelled.store(true, std::memory_order_relaxed);
  wake_locked();
}

bool TransferEngine::Impl::wait(TransferJobId job_id, TimeNs deadline_ns) {
  if (!is_this_process()) return true;
  std::unique_lock<std::mutex> lock(mutex_);
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end()) return true;
  const JobPointer job = found->second;
  return wait_for(lock, deadline_ns, [&job] { return job->is_ended; });
}

Status TransferEngine::Impl::order_stream_after(TransferJobId job_id, StreamId stream,
                                                TimeNs deadline_ns) {
  Status usable = device_.failure();
  if (!usable.is_ok()) return usable;
  std::unique_lock<std::mutex> lock(mutex_);
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end()) {
    return Status(StatusCode::kNotFound, "cannot wait for job: job_id=" + std::to_string(job_id));
  }
  const JobPointer job = found->second;
  ++num_order_waits_;
  const bool is_known =
      wait_for(lock, deadline_ns, [&job] { return job->done != nullptr || job->is_ended; });
  --num_order_waits_;
  if (!is_known) {
    return Status(StatusCode::kTimeout,
                  "cannot wait for job: not submitted yet: job_id=" + std::to_string(job_id));
  }
  // Ended: there is nothing left to come after.
  if (job->is_ended) return Status::ok();
  const std::shared_ptr<const ReadyPoint> done = job->done;
  // The driver may hold this call up, and must not hold up the engine's thread and other callers.
  lock.unlock();
  return device_.order_stream_after(stream, done->event());
}

TransferResult TransferEngine::Impl::take_result_locked(
    std::map<TransferJobId, JobPointer>::iterator found) {
  TransferResult result = std::move(found->second->result);
  jobs_.erase(found);
  return result;
}

void TransferEngine::Impl::poll(std::vector<TransferResult>& results) {
  if (!is_this_process()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto place = jobs_.begin(); place != jobs_.end();) {
    const auto found = place++;
    if (found->second->is_ended) results.push_back(take_result_locked(found));
  }
}

Result<TransferResult> TransferEngine::Impl::take(TransferJobId job_id) {
  if (!is_this_process()) {
    return Status(StatusCode::kClosed, "cannot take results of another process");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end()) {
    return Status(StatusCode::kNotFound, "cannot find job: job_id=" + std::to_string(job_id));
  }
  if (!found->second->is_ended) {
    return Status(StatusCode::kBusy, "job is under way: job_id=" + std::to_string(job_id));
  }
  return take_result_locked(found);
}

TransferStats TransferEngine::Impl::stats() const {
  if (!is_this_process()) return {};
  // Before: they have mutexes of their own, and nobody waits for one with another held.
  const std::uint64_t page_locked_bytes = ranges_.num_bytes();
  const std::uint64_t pending_bytes = locker_.pending_bytes();
  std::lock_guard<std::mutex> lock(mutex_);
  TransferStats stats = stats_;
  stats.page_locked_bytes = page_locked_bytes;
  stats.page_lock_pending_bytes = pending_bytes;
  return stats;
}

MethodModel TransferEngine::Impl::model() const {
  if (!is_this_process()) return {};
  std::lock_guard<std::mutex> lock(mutex_);
  return model_;
}

void TransferEngine::Impl::set_model(const MethodModel& model) {
  if (!is_this_process()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  model_ = model;
}

void TransferEngine::Impl::add_note(const std::string& text) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!note_.empty()) note_ += "; ";
  note_ += text;
}

std::string TransferEngine::Impl::note() const {
  if (!is_this_process()) return {};
  const std::string refusal = locker_.note();
  std::lock_guard<std::mutex> lock(mutex_);
  return refusal.empty() || note_.empty() ? note_ + refusal : note_ + "; " + refusal;
}

}  // namespace kvtier::transfer
