// What the transfer engine's thread does: chooses jobs and methods and feeds the pipes.
// Thread safety: see the header of the implementation.
#include <algorithm>
#include <exception>
#include <new>
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
// Calls for a stream that may stand still: the device takes about a thousand, of all its users.
constexpr std::uint64_t kCallsAheadMax = 256;
// How much longer a gentle save may take by the copy engine than by the fastest way: with pieces of
// 32 KiB it takes half as long again, with pieces of 4 KiB ten times as long.
constexpr double kGentleSlowdownMax = 3.0;
// Between looks at what the device still holds after a failure of the engine.
constexpr TimeNs kSettleNs = kNsPerMs;

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
  if (!device_.is_this_process()) return kNeverNs;
  try {
    return is_failing_ ? settle() : work();
  } catch (const std::exception& error) {
    fail(error.what());
  } catch (...) {
    fail("something unknown was thrown");
  }
  return clock_.now_ns() + kSettleNs;
}

TimeNs TransferEngine::Impl::work() {
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
  // The host's own device works in this thread, and has now something to do.
  const bool is_host = device_info_.kind == DeviceKind::kHost;
  if (is_host) device_.progress();
  bool has_ended = false;
  for (Direction& direction : directions_) {
    has_ended = (is_host && direction.pipe->collect() > 0) || has_ended;
    end_jobs(direction);
  }
  deliver_results();
  take_inbox();  // Who receives a result may have submitted the next job.
  const TimeNs now_ns = clock_.now_ns();
  TimeNs next_ns = locker_.advance() || has_ended ? now_ns : kNeverNs;
  for (const Direction& direction : directions_) {
    if (direction.active.empty() && direction.queued.empty()) continue;
    const bool is_ending =
        direction.pipe->is_ending() && now_ns - direction.last_end_ns < kEndDueNs;
    next_ns = std::min(next_ns, now_ns + (is_ending ? kEndPollNs : kPollNs));
  }
  return next_ns;
}

// What was thrown half-way leaves nobody knows what, so nothing new is begun. Throws nothing.
void TransferEngine::Impl::fail(const char* reason) noexcept {
  is_failing_ = true;
  std::lock_guard<std::mutex> lock(mutex_);
  if (has_failed_) return;
  has_failed_ = true;
  try {
    failure_ = Status(StatusCode::kInternal, std::string("transfer engine failed: ") + reason);
    note_ += (note_.empty() ? "" : "; ") + failure_.message();
  } catch (const std::bad_alloc&) {
    // The general text stays.
  }
}

// After fail(): jobs end as failed once the device holds nothing of them. Each step can be made
// again when it throws.
TimeNs TransferEngine::Impl::settle() {
  take_inbox();
  for (Direction& direction : directions_) {
    direction.current = nullptr;
    for (const JobPointer& job : direction.active) {
      if (job->status.is_ok()) job->status = failure();
    }
    end_queued(direction, failure());
  }
  device_.progress();
  for (Direction& direction : directions_) {
    direction.pipe->collect();
    end_jobs(direction);
  }
  deliver_results();
  const bool is_idle =
      std::all_of(directions_.begin(), directions_.end(),
                  [](const Direction& direction) { return direction.active.empty(); });
  return is_idle && !has_inbox() ? kNeverNs : clock_.now_ns() + kSettleNs;
}

Status TransferEngine::Impl::failure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return has_failed_ ? failure_ : Status::ok();
}

bool TransferEngine::Impl::has_inbox() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !inbox_.empty();
}

// One by one: whatever throws, a job is in one list at least and in its next one at most.
void TransferEngine::Impl::take_inbox() {
  std::lock_guard<std::mutex> lock(mutex_);
  while (!inbox_.empty()) {
    const JobPointer& job = inbox_.front();
    directions_[static_cast<std::size_t>(job->direction)].queued.push_back(job);
    inbox_.pop_front();
  }
}

// Those of which nothing was submitted. The others end when what is in flight has ended.
void TransferEngine::Impl::drop_cancelled(Direction& direction) {
  if (direction.queued.empty()) return;
  const Status lost = device_.failure();
  if (!lost.is_ok()) return end_queued(direction, lost);
  for (auto place = direction.queued.begin(); place != direction.queued.end();) {
    if ((*place)->is_cancelled.load(std::memory_order_relaxed)) {
      end_job(*place);
      place = direction.queued.erase(place);
    } else {
      ++place;
    }
  }
}

void TransferEngine::Impl::end_queued(Direction& direction, const Status& status) {
  while (!direction.queued.empty()) {
    direction.queued.front()->status = status;
    end_job(direction.queued.front());
    direction.queued.pop_front();
  }
}

// The first whose stream has come so far; the very first when nothing else is under way and the
// device can wait for its stream by itself, which then begins at once. False: none of them.
bool TransferEngine::Impl::take_next(Direction& direction) {
  const std::size_t num_looks = std::min(direction.queued.size(), kReadyLooksMax);
  if (num_looks == 0) return false;
  const bool can_be_first = !direction.pipe->has_chunks() && can_wait(*direction.queued.front());
  std::size_t chosen = num_looks;
  // Whatever the answer, it is this one.
  if (num_looks == 1 && can_be_first) chosen = 0;
  for (std::size_t index = 0; index < num_looks && chosen == num_looks; ++index) {
    const Result<bool> is_ready = device_.query_event(direction.queued[index]->ready->event());
    if (!is_ready.is_ok() || is_ready.value()) chosen = index;
  }
  if (chosen == num_looks) {
    if (!can_be_first) return false;
    chosen = 0;
  }
  const JobPointer job = direction.queued[chosen];
  direction.active.push_back(job);
  direction.queued.erase(direction.queued.begin() + static_cast<std::ptrdiff_t>(chosen));
  direction.current = job;
  return true;
}

// Whether the job can be handed to the device while its stream is behind: a copy of memory that is
// not page-locked would hold this thread until the stream gets there, and so would a call beyond
// those that the device's queue takes; what it takes is shared with the engine.
bool TransferEngine::Impl::can_wait(TransferJob& job) {
  prepare_job(job);
  if (device_info_.kind == DeviceKind::kHost) return true;
  if (job.reach == Reach::kNone && !job.is_bounced) return false;
  const FragmentTable& table = job.attachment->table;
  const std::uint64_t ahead_bytes = TransferPipe::kChunksInFlightMax * options_.chunk_bytes;
  const std::uint64_t num_blocks =
      std::min<std::uint64_t>(job.block_ids.size(), ahead_bytes / table.block_bytes() + 1);
  std::uint64_t num_calls = TransferPipe::kChunksInFlightMax;
  if (job.method == TransferMethod::kCopyEngine) num_calls = num_blocks * table.fragments().size();
  if (job.method == TransferMethod::kStaged && !job.is_bounced) num_calls = num_blocks;
  return num_calls <= kCallsAheadMax;
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
      if (!take_next(direction)) break;
      direction.current->status = begin_job(*direction.current);
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
  // What was submitted last may be under way for ever; whoever asks is told so.
  if (!pipe.broken().is_ok()) end_queued(direction, pipe.broken());
  if (!pipe.has_room()) direction.is_filling = false;
  if (pipe.num_chunks() == num_chunks_before) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  stats_.num_chunks += pipe.num_chunks() - num_chunks_before;
  stats_.submit_ns += clock_.now_ns() - begin_ns;
  return true;
}

// What has to be known before it can be begun; once a job. What is in the way stands in its status.
void TransferEngine::Impl::prepare_job(TransferJob& job) {
  if (job.is_prepared) return;
  job.page_locked = ranges_.view();
  job.reach = job.page_locked->reach_of(job.slots, job.attachment->table.block_bytes());
  job.status = choose_method(job);
  // Copies of the host itself need no memory of a special kind.
  const bool is_copied =
      device_info_.kind != DeviceKind::kHost && job.method != TransferMethod::kZeroCopy;
  if (job.status.is_ok() && is_copied && job.reach == Reach::kNone) job.is_bounced = take_ring(job);
  job.is_prepared = true;
}

bool TransferEngine::Impl::take_ring(const TransferJob& job) {
  TransferPipe& pipe = *directions_[static_cast<std::size_t>(job.direction)].pipe;
  const std::uint64_t bytes_before = pipe.ring_bytes();
  const Status taken = pipe.take_ring();
  const std::string text =
      taken.is_ok() ? "some slots are not page-locked: their bytes go through a ring of the engine"
                    : "some slots are not page-locked, and copies of them hold the engine up: " +
                          taken.message();
  std::lock_guard<std::mutex> lock(mutex_);
  stats_.ring_bytes += pipe.ring_bytes() - bytes_before;
  if (note_.find(text) == std::string::npos) note_ += (note_.empty() ? "" : "; ") + text;
  return taken.is_ok();
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
  prepare_job(job);
  if (!job.status.is_ok()) return job.status;
  Result<Event> begin = device_.create_event(EventUse::kTiming);
  if (!begin.is_ok()) return begin.status();
  job.begin = begin.value();
  if (job.is_hashed()) job.sums.emplace(job.attachment->table, job.seeds, job.expected);
  return Status::ok();
}

Status TransferEngine::Impl::choose_method(TransferJob& job) {
  const MethodSet allowed = allowed_methods(job);
  job.method = job.wanted_method;
  if (job.method == TransferMethod::kAuto) {
    const FragmentTable& table = job.attachment->table;
    const std::uint64_t fragment_bytes = table.block_bytes() / table.fragments().size();
    std::lock_guard<std::mutex> lock(mutex_);
    job.method = model_.choose(job.direction, fragment_bytes, job.num_bytes(), allowed);
    const auto uncorrected_ns = [&](TransferMethod method) {
      return model_.uncorrected_ns(job.direction, method, fragment_bytes, job.num_bytes());
    };
    const bool is_gentle =
        options_.are_saves_gentle && job.direction == TransferDirection::kSave &&
        allowed.is_allowed[static_cast<std::size_t>(TransferMethod::kCopyEngine)] &&
        uncorrected_ns(TransferMethod::kCopyEngine) <=
            kGentleSlowdownMax * uncorrected_ns(job.method);
    if (is_gentle) job.method = TransferMethod::kCopyEngine;
    return Status::ok();
  }
  if (allowed.is_allowed[static_cast<std::size_t>(job.method)]) return Status::ok();
  return Status(StatusCode::kUnsupported,
                std::string("cannot use method here: ") + method_name(job.method));
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
  if (device_info_.kind != DeviceKind::kHost) zero_copy = zero_copy && job.reach == Reach::kKernels;
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
  auto done = std::make_shared<const ReadyPoint>(device_, made.value());
  if (!direction.pipe->record_done(job, done->event()).is_ok()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  job.done = std::move(done);
  // A call of the system, so not for nothing.
  if (num_order_waits_ > 0) jobs_changed_.notify_all();
}

}  // namespace kvtier::transfer
