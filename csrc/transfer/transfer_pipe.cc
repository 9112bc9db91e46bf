// Chunks on lanes. Thread safety: see the header.
//
// All kernels of a direction are in one lane, so that they never run beside each other and each can
// have the whole budget of processors; all copies are in the other, so that the link goes from one
// to the next without waiting for a kernel. The second step of a chunk waits for the first, and the
// first for the chunk that was in its staging buffer before. Digests and events belong to a chunk's
// place, which is taken again only after this thread saw its chunk end.
#include "transfer/transfer_pipe.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvtier::transfer {

Result<std::unique_ptr<TransferPipe>> TransferPipe::create(Device& device,
                                                           const PipeOptions& options) {
  std::unique_ptr<TransferPipe> pipe(new TransferPipe(device, options));
  Status prepared = pipe->prepare();
  if (!prepared.is_ok()) return prepared;
  return pipe;
}

Status TransferPipe::prepare() {
  const DeviceInfo info = device_.info();
  has_kernels_ = info.has_kernels;
  leaves_per_chunk_ = std::max<std::uint64_t>(options_.chunk_bytes / kLeafBytes, 1);
  const bool is_load = options_.direction == TransferDirection::kLoad;
  for (std::size_t index = 0; index < lanes_.size(); ++index) {
    // Only kernels compete: copies of the two directions have the link's two ways.
    const bool is_first = is_load && index == kKernels;
    Result<LaneId> id = device_.create_lane(is_first ? LanePriority::kLoad : LanePriority::kSave);
    if (!id.is_ok()) return id.status();
    lanes_[index] = {id.value(), true};
  }
  // Where memory is one, staging would only be a second copy.
  const bool is_staged = has_kernels_ && !info.is_memory_unified;
  for (Staging& staging : stagings_) {
    if (!is_staged) break;
    Result<std::byte*> memory = device_.allocate(options_.chunk_bytes);
    if (!memory.is_ok()) return memory.status();
    staging.memory = memory.value();
    staging_bytes_ += options_.chunk_bytes;
  }
  for (Event& event : chunk_done_) {
    Result<Event> made = device_.create_event();
    if (!made.is_ok()) return made.status();
    event = made.value();
  }
  Result<Event> step_done = device_.create_event();
  if (!step_done.is_ok()) return step_done.status();
  step_done_ = step_done.value();
  const std::uint64_t digests_bytes =
      kChunksInFlightMax * leaves_per_chunk_ * sizeof(std::uint64_t);
  Result<std::byte*> digests = device_.allocate_page_locked(digests_bytes);
  if (!digests.is_ok()) return digests.status();
  digests_ = reinterpret_cast<std::uint64_t*>(digests.value());
  if (is_load || !has_kernels_) return Status::ok();
  digests = device_.allocate(digests_bytes);
  if (!digests.is_ok()) return digests.status();
  device_digests_ = reinterpret_cast<std::uint64_t*>(digests.value());
  if (!options_.are_saves_gentle) return Status::ok();
  leaves_ahead_ = kChunksInFlightMax * leaves_per_chunk_;
  for (Ahead& ahead : aheads_) {
    digests = device_.allocate(digests_bytes);
    if (!digests.is_ok()) return digests.status();
    ahead.digests = reinterpret_cast<std::uint64_t*>(digests.value());
  }
  return Status::ok();
}

TransferPipe::~TransferPipe() {
  for (const Staging& staging : stagings_) device_.deallocate(staging.memory);
  for (const Lane& lane : lanes_) {
    if (lane.is_created) device_.destroy_lane(lane.id);
  }
  for (const Event event : chunk_done_) device_.destroy_event(event);
  device_.destroy_event(step_done_);
  device_.deallocate(reinterpret_cast<std::byte*>(device_digests_));
  for (const Ahead& ahead : aheads_) {
    device_.deallocate(reinterpret_cast<std::byte*>(ahead.digests));
  }
  device_.deallocate_page_locked(reinterpret_cast<std::byte*>(digests_));
}

void TransferPipe::submit_chunk(const std::shared_ptr<TransferJob>& job) {
  KVTIER_CHECK(has_room());
  Chunk made{job, cut_next(*job), take_place(), nullptr, nullptr, nullptr, steps_of(*job), false};
  if (job->is_hashed()) made.digests = digests_ + made.place * leaves_per_chunk_;
  if (job->is_bounced) made.bounce = ring_.place(made.place);
  // Its kernel ran with an earlier chunk.
  if (job->next_leaf < job->hashed_ahead.end) made.steps.first = kCopies;
  job->status = order_lane(*job, made.steps.first);
  if (!job->status.is_ok()) return;
  // On the list before anything of it is under way, so that its end is waited for whatever happens.
  chunks_.push_back(made);
  Chunk& chunk = chunks_.back();
  ++num_chunks_;
  ++num_chunks_since_idle_;
  ++job->num_chunks;
  ++job->num_chunks_in_flight;
  if (chunk.bounce != nullptr && job->direction == TransferDirection::kLoad) {
    fill_bounce(*job, chunk);
  }
  if (job->method == TransferMethod::kStaged) chunk.staging = &take_staging();
  job->status = submit_steps(*job, chunk);
  seal(chunk);
  if (job->status.is_ok()) job->next_leaf = chunk.leaves.end;
}

// Whatever of a failed chunk is under way has to be waited for like a whole one.
void TransferPipe::seal(Chunk& chunk) {
  TransferJob& job = *chunk.job;
  const Event done = chunk_done_[chunk.place];
  Status recorded = job.status.is_ok() ? Status::ok() : order_steps(chunk.steps);
  if (recorded.is_ok()) recorded = device_.record_lane(lanes_[chunk.steps.last].id, done);
  if (!recorded.is_ok()) {
    broken_ = recorded;
    if (job.status.is_ok()) job.status = recorded;
    return;
  }
  chunk.is_sealed = true;
  if (chunk.staging != nullptr) chunk.staging->emptied = done;
  if (job.hashed_ahead.end > 0) aheads_[job.ahead_index].emptied = done;
}

// A job's chunks all take the same way, so its last chunk's last step is the last of all.
TransferPipe::Steps TransferPipe::steps_of(const TransferJob& job) const {
  if (job.method == TransferMethod::kZeroCopy) return {kKernels, kKernels};
  const bool has_kernel =
      job.method == TransferMethod::kStaged || (job.is_hashed() && has_kernels_);
  if (!has_kernel) return {kCopies, kCopies};
  if (job.direction == TransferDirection::kSave) return {kKernels, kCopies};
  return {kCopies, kKernels};
}

LeafRange TransferPipe::cut_next(const TransferJob& job) const {
  const FragmentTable& table = job.attachment->table;
  const std::uint64_t rest_bytes = job.num_bytes() - leaf_place_bytes(table, job.next_leaf);
  const Steps lanes = steps_of(job);
  const bool is_one = lanes.first == lanes.last || is_hashed_ahead(job);
  const ChunkSteps steps = is_one                    ? ChunkSteps::kOne
                           : lanes.first == kKernels ? ChunkSteps::kKernelFirst
                                                     : ChunkSteps::kKernelLast;
  const std::uint64_t num_since_idle = chunks_.empty() ? 0 : num_chunks_since_idle_;
  const std::uint64_t bytes_max =
      choose_chunk_bytes(steps, num_since_idle, rest_bytes,
                         job.is_bounced ? ring_.place_bytes() : options_.chunk_bytes);
  const bool is_begun = job.next_leaf < job.hashed_ahead.end;
  return cut_chunk(table, {job.next_leaf, is_begun ? job.hashed_ahead.end : job.num_leaves()},
                   std::max<std::uint64_t>(bytes_max, kLeafBytes), leaves_per_chunk_);
}

std::size_t TransferPipe::take_place() {
  if (chunks_.empty()) num_chunks_since_idle_ = 0;
  const std::size_t place = num_chunks_ % kChunksInFlightMax;
  // The event's chunk was seen to end; soon it stands for another.
  for (Staging& staging : stagings_) {
    if (staging.emptied == chunk_done_[place]) staging.emptied = {};
  }
  for (Ahead& ahead : aheads_) {
    if (ahead.emptied == chunk_done_[place]) ahead.emptied = {};
  }
  return place;
}

bool TransferPipe::is_hashed_ahead(const TransferJob& job) const {
  return leaves_ahead_ > 0 && job.is_hashed() && !job.is_bounced &&
         job.method == TransferMethod::kCopyEngine;
}

// Chooses what the next kernel hashes: all that is left of the job, as far as a buffer and the
// kernel's list of blocks go. Each kernel of ours that runs beside the engine's holds one of those
// up, short or long: the fewer, the better.
Status TransferPipe::begin_ahead(TransferJob& job, const Chunk& chunk) {
  job.ahead_index = num_aheads_++ % aheads_.size();
  job.hashed_ahead = cut_chunk(job.attachment->table, {job.next_leaf, job.num_leaves()},
                               job.num_bytes(), leaves_ahead_);
  KVTIER_CHECK(chunk.leaves.end <= job.hashed_ahead.end);
  const Event emptied = aheads_[job.ahead_index].emptied;
  if (emptied.event_id == 0) return Status::ok();
  return device_.order_lane_after(lanes_[kKernels].id, emptied);
}

std::uint64_t* TransferPipe::device_digests_of(const TransferJob& job, const Chunk& chunk) const {
  if (job.hashed_ahead.end == 0) return device_digests_ + chunk.place * leaves_per_chunk_;
  return aheads_[job.ahead_index].digests + (chunk.leaves.begin - job.hashed_ahead.begin);
}

TransferPipe::Staging& TransferPipe::take_staging() {
  return stagings_[num_staged_++ % kNumStagings];
}

// Orders the lane after what the job's first chunk there has to come after.
Status TransferPipe::order_lane(TransferJob& job, std::size_t lane_index) {
  if (job.has_begun) return Status::ok();
  const LaneId lane = lanes_[lane_index].id;
  Status ordered = device_.order_lane_after(lane, job.ready->event());
  if (!ordered.is_ok()) return ordered;
  job.has_begun = true;
  return device_.record_lane(lane, job.begin);
}

Status TransferPipe::submit_steps(TransferJob& job, const Chunk& chunk) {
  const Steps& steps = chunk.steps;
  if (chunk.staging != nullptr && chunk.staging->emptied.event_id != 0) {
    Status ordered = device_.order_lane_after(lanes_[steps.first].id, chunk.staging->emptied);
    if (!ordered.is_ok()) return ordered;
  }
  const bool is_kernel_first = steps.first == kKernels;
  const bool has_two = steps.first != steps.last;
  if (is_kernel_first && is_hashed_ahead(job)) {
    Status begun = begin_ahead(job, chunk);
    if (!begun.is_ok()) return begun;
  }
  Status first = is_kernel_first ? submit_kernel(job, chunk, has_two)
                                 : submit_copies(job, chunk, job.hashed_ahead.end > 0);
  if (!first.is_ok() || !has_two) return first;
  Status ordered = order_steps(steps);
  if (!ordered.is_ok()) return ordered;
  // The kernel after the copies hashes what arrived, not what was sent.
  return is_kernel_first ? submit_copies(job, chunk, true) : submit_kernel(job, chunk, false);
}

// The second step waits for the first; nothing else of the first lane does.
Status TransferPipe::order_steps(const Steps& steps) {
  if (steps.first == steps.last) return Status::ok();
  Status recorded = device_.record_lane(lanes_[steps.first].id, step_done_);
  return recorded.is_ok() ? device_.order_lane_after(lanes_[steps.last].id, step_done_) : recorded;
}

Status TransferPipe::record_done(TransferJob& job, Event done) {
  return device_.record_lane(lanes_[steps_of(job).last].id, done);
}

std::size_t TransferPipe::collect() {
  std::size_t num_ended = 0;
  const bool has_failed = !device_.failure().is_ok();
  while (!chunks_.empty()) {
    Chunk& chunk = chunks_.front();
    TransferJob& job = *chunk.job;
    if (!has_failed) {
      if (!chunk.is_sealed) {
        seal(chunk);
        if (!chunk.is_sealed) return num_ended;
        // It was the last, or there would have been none after it.
        broken_ = Status::ok();
      }
      const Result<bool> is_done = device_.query_event(chunk_done_[chunk.place]);
      if (!is_done.is_ok()) {
        // Not an answer: the chunk may still be under way. A lost device shows with the next call.
        if (job.status.is_ok()) job.status = is_done.status();
        return num_ended;
      }
      if (!is_done.value()) return num_ended;
    } else if (job.status.is_ok()) {
      job.status = device_.failure();
    }
    if (chunk.bounce != nullptr && job.direction == TransferDirection::kSave &&
        job.status.is_ok()) {
      empty_bounce(job, chunk);
    }
    if (chunk.digests != nullptr && job.status.is_ok()) {
      if (!has_kernels_) hash_slots(job, chunk);
      job.sums->take({chunk.digests, chunk.leaves.end - chunk.leaves.begin});
    }
    --job.num_chunks_in_flight;
    chunks_.pop_front();
    ++num_ended;
  }
  return num_ended;
}

}  // namespace kvtier::transfer
