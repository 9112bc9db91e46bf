// What the transfer engine's thread does: chooses jobs and methods and feeds the pipes.
// Thread safety: see the header of the implementation.
#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "transfer/transfer_engine_impl.h"

namespace kvtier::transfer {
namespace {

// While chunks are in flight. Others wait behind them on the device, so this need not be shorter to
// keep the link busy; it is what a job's end is seen late.
constexpr TimeNs kPollNs = 30 * kNsPerUs;
// While the next thing that ends may be a job and is due soon, since something has just ended; a
// job may also wait for its stream for long.
constexpr TimeNs kEndPollNs = 10 * kNsPerUs;
constexpr TimeNs kEndDueNs = 500 * kNsPerUs;
// Chunks of one direction before the other is looked at: it must not idle meanwhile.
constexpr std::size_t kChunksPerTurn = 2;
// How many waiting jobs are asked whether they are ready while the first is not.
constexpr std::size_t kReadyLooksMax = 8;

// Copies of a block to one place twice over would leave a mix. is_seen: all false, and so again.
Status check_distinct(const std::vector<std::int64_t>& block_ids, std::vector<bool>& is_seen) {
  Status distinct;
  std::size_t num_seen = 0;
  for (; num_seen < block_ids.size() && distinct.is_ok(); ++num_seen) {
    const auto block = static_cast<std::size_t>(block_ids[num_seen]);
    if (is_seen[block]) {
      distinct = Status(StatusCode::kInvalidArgument,
                        "cannot load a block twice in one job: block_id=" + std::to_string(block));
    }
    is_seen[block] = true;
  }
  for (std::size_t index = 0; index < num_seen; ++index) {
    is_seen[static_cast<std::size_t>(block_ids[index])] = false;
  }
  return distinct;
}

}  // namespace

TimeNs TransferEngine::Impl::advance() {
  device_.progress();
  take_inbox();
  for (Direction& direction : directions_) {
    if (direction.pipe->collect() > 0) direction.last_end_ns = clock_.now_ns();
    end_jobs(direction);
    drop_cancelled(direction);
  }
  deliver_results();
  // In turns, loads first: a caller waits for them.
  Direction& loads = directions_[static_cast<std::size_t>(TransferDirection::kLoad)];
  Direction& saves = directions_[static_cast<std::size_t>(TransferDirection::kSave)];
  while (true) {
    const bool has_loaded = submit_chunks(loads);
    const bool has_saved = submit_chunks(saves);
    if (!has_loaded && !has_saved) break;
    take_inbox();
  }
  for (Direction& direction : directions_) end_jobs(direction);
  deliver_results();
  take_inbox();  // Who receives a result may have submitted the next job.
  const TimeNs now_ns = clock_.now_ns();
  TimeNs next_ns = kNeverNs;
  for (const Direction& direction : directions_) {
    if (direction.active.empty() && direction.queued.empty()) continue;
    const bool is_ending =
        direction.pipe->is_ending() && now_ns - direction.last_end_ns < kEndDueNs;
    next_ns = std::min(next_ns, now_ns + (is_ending ? kEndPollNs : kPollNs));
  }
  return next_ns;
}

void TransferEngine::Impl::take_inbox() {
  std::vector<JobPointer> arrived;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    arrived.swap(inbox_);
  }
  for (JobPointer& job : arrived) {
    directions_[static_cast<std::size_t>(job->direction)].queued.push_back(std::move(job));
  }
}

// Those of which nothing was submitted. The others end when what is in flight has ended.
void TransferEngine::Impl::drop_cancelled(Direction& direction) {
  if (direction.queued.empty()) return;
  const bool has_failed = !device_.failure().is_ok();
  std::deque<JobPointer> kept;
  for (JobPointer& job : direction.queued) {
    if (has_failed) job->status = device_.failure();
    if (has_failed || job->is_cancelled.load(std::memory_order_relaxed)) {
      end_job(job);
    } else {
      kept.push_back(std::move(job));
    }
  }
  direction.queued = std::move(kept);
}

// The first whose stream has come so far; the very first when nothing else is under way, since the
// device can wait for its stream by itself and then begins at once.
TransferEngine::Impl::JobPointer TransferEngine::Impl::choose_next(Direction& direction) {
  const std::size_t num_looks = std::min(direction.queued.size(), kReadyLooksMax);
  std::size_t chosen = num_looks;
  // Whatever the answer, it is this one.
  if (num_looks == 1 && !direction.pipe->has_chunks()) chosen = 0;
  for (std::size_t index = 0; index < num_looks && chosen == num_looks; ++index) {
    const Result<bool> is_ready = device_.query_event(direction.queued[index]->ready->event());
    if (!is_ready.is_ok() || is_ready.value()) chosen = index;
  }
  if (chosen == num_looks) {
    if (direction.queued.empty() || direction.pipe->has_chunks()) return nullptr;
    chosen = 0;
  }
  JobPointer job = std::move(direction.queued[chosen]);
  direction.queued.erase(direction.queued.begin() + static_cast<std::ptrdiff_t>(chosen));
  return job;
}

bool TransferEngine::Impl::submit_chunks(Direction& direction) {
  TransferPipe& pipe = *direction.pipe;
  if (direction.current == nullptr && direction.queued.empty()) return false;
  if (pipe.is_drained()) direction.is_filling = true;
  const TimeNs begin_ns = clock_.now_ns();
  const std::uint64_t num_chunks_before = pipe.num_chunks();
  while (pipe.has_room() && pipe.broken().is_ok()) {
    if (pipe.num_chunks() - num_chunks_before == kChunksPerTurn) break;
    if (direction.current != nullptr && !direction.is_filling) break;
    if (direction.current == nullptr) {
      direction.current = choose_next(direction);
      if (direction.current == nullptr) break;
      direction.current->status = begin_job(*direction.current);
      direction.active.push_back(direction.current);
    }
    TransferJob& job = *direction.current;
    if (job.status.is_ok() && !job.is_cancelled.load(std::memory_order_relaxed)) {
      pipe.submit_chunk(direction.current);
      if (job.status.is_ok() && job.is_submitted()) publish_done(job, direction);
    }
    const bool is_over = !job.status.is_ok() || job.is_submitted() ||
                         job.is_cancelled.load(std::memory_order_relaxed);
    if (is_over) direction.current = nullptr;
  }
  if (!pipe.broken().is_ok()) {
    // Its last chunk may be under way for ever; whoever asks is told so.
    for (JobPointer& job : direction.queued) {
      job->status = pipe.broken();
      end_job(job);
    }
    direction.queued.clear();
  }
  if (!pipe.has_room()) direction.is_filling = false;
  if (pipe.num_chunks() == num_chunks_before) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  stats_.num_chunks += pipe.num_chunks() - num_chunks_before;
  stats_.submit_ns += clock_.now_ns() - begin_ns;
  return true;
}

Status TransferEngine::Impl::begin_job(TransferJob& job) {
  if (job.direction == TransferDirection::kLoad) {
    const std::size_t num_blocks = job.attachment->table.num_blocks();
    if (is_block_seen_.size() < num_blocks) is_block_seen_.resize(num_blocks);
    Status distinct = check_distinct(job.block_ids, is_block_seen_);
    if (!distinct.is_ok()) return distinct;
  }
  Status good = check_memory(*job.attachment);
  if (!good.is_ok()) return good;
  const MethodSet allowed = allowed_methods(job);
  job.method = job.wanted_method;
  if (job.method == TransferMethod::kAuto) {
    const FragmentTable& table = job.attachment->table;
    std::lock_guard<std::mutex> lock(mutex_);
    job.method = model_.choose(job.direction, table.block_bytes() / table.fragments().size(),
                               job.num_bytes(), allowed);
  } else if (!allowed.is_allowed[static_cast<std::size_t>(job.method)]) {
    return Status(StatusCode::kUnsupported,
                  std::string("cannot use method here: ") + method_name(job.method));
  }
  Result<Event> begin = device_.create_event(EventUse::kTiming);
  if (!begin.is_ok()) return begin.status();
  job.begin = begin.value();
  if (job.is_hashed()) job.sums.emplace(job.attachment->table, job.seeds, job.expected);
  return Status::ok();
}

// An address that is no longer what it was would end the whole process' use of the device.
Status TransferEngine::Impl::check_memory(const Attachment& attachment) {
  for (std::size_t index = 0; index < attachment.memory.size(); ++index) {
    const auto& [address, identity] = attachment.memory[index];
    const Result<std::uint64_t> found = device_.identify_memory(address);
    if (found.is_ok() && found.value() == identity) continue;
    // Another answer says nothing of the tensor.
    if (!found.is_ok() && found.status().code() != StatusCode::kInvalidArgument) {
      return found.status();
    }
    return Status(StatusCode::kInvalidArgument,
                  "cannot use tensor that was freed: tensor_index=" + std::to_string(index));
  }
  return Status::ok();
}

MethodSet TransferEngine::Impl::allowed_methods(const TransferJob& job) const {
  MethodSet allowed;
  auto& is_allowed = allowed.is_allowed;
  auto& zero_copy = is_allowed[static_cast<std::size_t>(TransferMethod::kZeroCopy)];
  auto& staged = is_allowed[static_cast<std::size_t>(TransferMethod::kStaged)];
  staged = device_info_.has_kernels && !device_info_.is_memory_unified;
  zero_copy = device_info_.has_kernels && device_info_.can_kernels_reach_host;
  if (zero_copy && device_info_.kind != DeviceKind::kHost) {
    zero_copy = ranges_.contain_all(job.slots, job.attachment->table.block_bytes());
  }
  // One memory: a kernel that reads and writes it is all there is to do.
  if (zero_copy && device_info_.is_memory_unified && job.wanted_method == TransferMethod::kAuto) {
    is_allowed[static_cast<std::size_t>(TransferMethod::kCopyEngine)] = false;
  }
  return allowed;
}

void TransferEngine::Impl::publish_done(TransferJob& job, Direction& direction) {
  Result<Event> made = device_.create_event(EventUse::kTiming);
  if (!made.is_ok()) {
    // The job itself is fine; only that nobody can be ordered after it before it has ended.
    return;
  }
  const Status recorded = direction.pipe->record_done(job, made.value());
  if (!recorded.is_ok()) {
    device_.destroy_event(made.value());
    return;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  job.done = made.value();
  job.is_done_recorded = true;
  // A call of the system, so not for nothing.
  if (num_order_waits_ > 0) jobs_changed_.notify_all();
}

}  // namespace kvtier::transfer
