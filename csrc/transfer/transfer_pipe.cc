// Chunks on lanes. Thread safety: see the header.
//
// A staging buffer belongs to its lane, and a lane runs in order: the next chunk of a lane cannot
// reach the buffer before the last one has left it. Chunks alternate between the lanes, so that the
// kernel of one runs beside the copy of another; each kernel waits for the one before it, so that
// it can have the whole budget of processors. Digests and events belong to a chunk's place, which
// is taken again only after this thread saw its chunk end.
#include "transfer/transfer_pipe.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "layout/copy_plan.h"

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
  for (Lane& lane : lanes_) {
    Result<LaneId> id = device_.create_lane(is_load ? LanePriority::kLoad : LanePriority::kSave);
    if (!id.is_ok()) return id.status();
    lane.id = id.value();
    lane.is_created = true;
    // Where memory is one, staging would only be a second copy.
    if (!has_kernels_ || info.is_memory_unified) continue;
    Result<std::byte*> staging = device_.allocate(options_.chunk_bytes);
    if (!staging.is_ok()) return staging.status();
    lane.staging = staging.value();
    staging_bytes_ += options_.chunk_bytes;
  }
  for (Event& event : chunk_done_) {
    Result<Event> made = device_.create_event();
    if (!made.is_ok()) return made.status();
    event = made.value();
  }
  Result<Event> kernel_done = device_.create_event();
  if (!kernel_done.is_ok()) return kernel_done.status();
  kernel_done_ = kernel_done.value();
  Result<std::byte*> digests =
      device_.allocate_page_locked(kChunksInFlightMax * leaves_per_chunk_ * sizeof(std::uint64_t));
  if (!digests.is_ok()) return digests.status();
  digests_ = reinterpret_cast<std::uint64_t*>(digests.value());
  return Status::ok();
}

TransferPipe::~TransferPipe() {
  for (Lane& lane : lanes_) {
    device_.deallocate(lane.staging);
    if (lane.is_created) device_.destroy_lane(lane.id);
  }
  for (const Event event : chunk_done_) device_.destroy_event(event);
  device_.destroy_event(kernel_done_);
  device_.deallocate_page_locked(reinterpret_cast<std::byte*>(digests_));
}

void TransferPipe::submit_chunk(const std::shared_ptr<TransferJob>& job) {
  KVTIER_CHECK(has_room());
  Chunk chunk{job, cut_next(*job), take_place(), nullptr};
  if (job->is_hashed()) chunk.digests = digests_ + chunk.place * leaves_per_chunk_;
  // Without a second step there is nothing to overlap.
  const std::size_t lane_index = job->method == TransferMethod::kZeroCopy ? 0 : next_lane_;
  next_lane_ = 1 - lane_index;
  Lane& lane = lanes_[lane_index];
  job->status = order_lane(*job, lane_index);
  if (!job->status.is_ok()) return;
  job->status = submit(*job, chunk, lane_index);
  // Whatever of a failed chunk is under way has to be waited for like a whole one.
  const Status recorded = device_.record_lane(lane.id, chunk_done_[chunk.place]);
  if (!recorded.is_ok()) {
    broken_ = recorded;
    job->status = recorded;
    return;
  }
  ++num_chunks_;
  ++num_chunks_since_idle_;
  lane.last = chunk_done_[chunk.place];
  lane.last_job_id = job->job_id;
  ++job->num_chunks;
  ++job->num_chunks_in_flight;
  if (job->status.is_ok()) job->next_leaf = chunk.leaves.end;
  chunks_.push_back(std::move(chunk));
}

LeafRange TransferPipe::cut_next(const TransferJob& job) const {
  const FragmentTable& table = job.attachment->table;
  const std::uint64_t rest_bytes = job.num_bytes() - leaf_place_bytes(table, job.next_leaf);
  const bool has_kernel_step =
      job.method == TransferMethod::kStaged ||
      (job.method == TransferMethod::kCopyEngine && job.is_hashed() && has_kernels_);
  const ChunkSteps steps = !has_kernel_step                            ? ChunkSteps::kOne
                           : job.direction == TransferDirection::kSave ? ChunkSteps::kKernelFirst
                                                                       : ChunkSteps::kKernelLast;
  const std::uint64_t num_since_idle = chunks_.empty() ? 0 : num_chunks_since_idle_;
  const std::uint64_t bytes_max =
      choose_chunk_bytes(steps, num_since_idle, rest_bytes, options_.chunk_bytes);
  return cut_chunk(table, {job.next_leaf, job.num_leaves()},
                   std::max<std::uint64_t>(bytes_max, kLeafBytes), leaves_per_chunk_);
}

std::size_t TransferPipe::take_place() {
  if (chunks_.empty()) num_chunks_since_idle_ = 0;
  const std::size_t place = num_chunks_ % kChunksInFlightMax;
  // The event's chunk was seen to end; soon it stands for another.
  if (last_kernel_ == chunk_done_[place]) last_kernel_ = {};
  return place;
}

// Orders the lane after what the job's first chunk there has to come after.
Status TransferPipe::order_lane(TransferJob& job, std::size_t lane_index) {
  const Lane& lane = lanes_[lane_index];
  if (job.is_lane_ordered[lane_index]) return Status::ok();
  Status ordered = device_.order_lane_after(lane.id, job.ready);
  if (!ordered.is_ok()) return ordered;
  job.is_lane_ordered[lane_index] = true;
  if (job.has_begun) return Status::ok();
  job.has_begun = true;
  return device_.record_lane(lane.id, job.begin);
}

Status TransferPipe::submit(const TransferJob& job, const Chunk& chunk, std::size_t lane_index) {
  const bool is_save = job.direction == TransferDirection::kSave;
  if (job.method == TransferMethod::kStaged) return submit_staged(job, chunk, lane_index);
  if (job.method == TransferMethod::kCopyEngine) return submit_fragments(job, chunk, lane_index);
  return submit_kernel(job, chunk, lane_index,
                       is_save ? BlockCopyKind::kGather : BlockCopyKind::kScatter, nullptr);
}

Status TransferPipe::submit_staged(const TransferJob& job, const Chunk& chunk,
                                   std::size_t lane_index) {
  const Lane& lane = lanes_[lane_index];
  plan_staging_copies(job, chunk.leaves, lane.staging);
  if (job.direction == TransferDirection::kLoad) {
    Status copied = device_.submit_copies(lane.id, pieces_);
    if (!copied.is_ok()) return copied;
    return submit_kernel(job, chunk, lane_index, BlockCopyKind::kScatter, lane.staging);
  }
  Status gathered = submit_kernel(job, chunk, lane_index, BlockCopyKind::kGather, lane.staging);
  if (!gathered.is_ok()) return gathered;
  Status ended = end_first_kernel(lane_index);
  return ended.is_ok() ? device_.submit_copies(lane.id, pieces_) : ended;
}

Status TransferPipe::submit_fragments(const TransferJob& job, const Chunk& chunk,
                                      std::size_t lane_index) {
  const Lane& lane = lanes_[lane_index];
  plan_fragment_copies(job, chunk.leaves);
  const bool is_hashed_here = chunk.digests != nullptr && has_kernels_;
  if (is_hashed_here && job.direction == TransferDirection::kSave) {
    Status hashed = submit_kernel(job, chunk, lane_index, BlockCopyKind::kHash, nullptr);
    if (hashed.is_ok()) hashed = end_first_kernel(lane_index);
    return hashed.is_ok() ? device_.submit_copies(lane.id, pieces_) : hashed;
  }
  Status copied = device_.submit_copies(lane.id, pieces_);
  if (!copied.is_ok() || !is_hashed_here) return copied;
  // What arrived, not what was sent.
  return submit_kernel(job, chunk, lane_index, BlockCopyKind::kHash, nullptr);
}

// The next kernel need not wait for the copy that follows this one.
Status TransferPipe::end_first_kernel(std::size_t lane_index) {
  Status recorded = device_.record_lane(lanes_[lane_index].id, kernel_done_);
  if (recorded.is_ok()) last_kernel_ = kernel_done_;
  return recorded;
}

// `staging` null: contiguous memory is the slots.
Status TransferPipe::submit_kernel(const TransferJob& job, const Chunk& chunk,
                                   std::size_t lane_index, BlockCopyKind kind, std::byte* staging) {
  const LaneId lane = lanes_[lane_index].id;
  // Else both would go beyond the budget together.
  if (last_kernel_.event_id != 0 && last_kernel_lane_ != lane_index) {
    Status ordered = device_.order_lane_after(lane, last_kernel_);
    if (!ordered.is_ok()) return ordered;
  }
  const LeafRange& leaves = chunk.leaves;
  const FragmentTable& table = job.attachment->table;
  const std::uint64_t per_block = table.leaves_per_block();
  const std::uint64_t first_block = leaves.begin / per_block;
  const std::uint64_t last_block = (leaves.end - 1) / per_block;
  const std::uint64_t begin_bytes = leaf_place_bytes(table, leaves.begin);
  places_.clear();
  for (std::uint64_t block = first_block; block <= last_block; ++block) {
    // Staging holds the chunk alone: the first block's host order may begin before it.
    std::byte* linear = staging == nullptr ? job.slots[block]
                                           : staging + (block * table.block_bytes() - begin_bytes);
    places_.push_back({job.block_ids[block], linear});
  }
  BlockCopy op;
  op.kind = kind;
  op.table_id = job.attachment->table_id;
  op.places = places_;
  op.first_leaf = static_cast<std::uint32_t>(leaves.begin - first_block * per_block);
  op.num_leaves = static_cast<std::uint32_t>(leaves.end - leaves.begin);
  op.digests = chunk.digests;
  op.num_ctas = options_.max_ctas;
  // Whether it was submitted or not: until the chunk has ended it may run.
  last_kernel_ = chunk_done_[chunk.place];
  last_kernel_lane_ = lane_index;
  return device_.submit_block_copy(lane, op);
}

namespace {

// Calls with each block of the chunk and the part of its host order that is in it.
template <typename Call>
void for_each_stretch(const TransferJob& job, const LeafRange& leaves, const Call& call) {
  const FragmentTable& table = job.attachment->table;
  const std::uint64_t begin_bytes = leaf_place_bytes(table, leaves.begin);
  const std::uint64_t end_bytes = leaf_place_bytes(table, leaves.end);
  std::uint64_t block = leaves.begin / table.leaves_per_block();
  for (std::uint64_t place_bytes = begin_bytes; place_bytes < end_bytes; ++block) {
    const std::uint64_t block_begin_bytes = block * table.block_bytes();
    const std::uint64_t stop_bytes = std::min(block_begin_bytes + table.block_bytes(), end_bytes);
    call(block, place_bytes - block_begin_bytes, stop_bytes - block_begin_bytes);
    place_bytes = stop_bytes;
  }
}

}  // namespace

void TransferPipe::plan_fragment_copies(const TransferJob& job, const LeafRange& leaves) {
  pieces_.clear();
  const auto direction = job.direction == TransferDirection::kSave
                             ? layout::PlanDirection::kToLinear
                             : layout::PlanDirection::kFromLinear;
  for_each_stretch(job, leaves,
                   [&](std::uint64_t block, std::uint64_t begin_bytes, std::uint64_t end_bytes) {
                     layout::append_fragment_pieces(job.attachment->table,
                                                    {job.block_ids[block], begin_bytes, end_bytes},
                                                    job.slots[block], direction, pieces_);
                   });
}

void TransferPipe::plan_staging_copies(const TransferJob& job, const LeafRange& leaves,
                                       std::byte* staging) {
  pieces_.clear();
  std::byte* place = staging;
  for_each_stretch(job, leaves,
                   [&](std::uint64_t block, std::uint64_t begin_bytes, std::uint64_t end_bytes) {
                     std::byte* slot = job.slots[block] + begin_bytes;
                     const std::uint64_t length_bytes = end_bytes - begin_bytes;
                     if (job.direction == TransferDirection::kSave) {
                       layout::append_piece({place, slot, length_bytes}, pieces_);
                     } else {
                       layout::append_piece({slot, place, length_bytes}, pieces_);
                     }
                     place += length_bytes;
                   });
}

Status TransferPipe::record_done(TransferJob& job, Event done) {
  // The lane of the last chunk waits for the other one's, where that is of this job too.
  const std::size_t last_lane = 1 - next_lane_;
  const Lane& other = lanes_[1 - last_lane];
  if (other.last_job_id == job.job_id) {
    Status ordered = device_.order_lane_after(lanes_[last_lane].id, other.last);
    if (!ordered.is_ok()) return ordered;
  }
  return device_.record_lane(lanes_[last_lane].id, done);
}

void TransferPipe::collect() {
  const bool has_failed = !device_.failure().is_ok();
  while (!chunks_.empty()) {
    Chunk& chunk = chunks_.front();
    TransferJob& job = *chunk.job;
    if (!has_failed) {
      const Result<bool> is_done = device_.query_event(chunk_done_[chunk.place]);
      if (is_done.is_ok() && !is_done.value()) return;
      if (!is_done.is_ok() && job.status.is_ok()) job.status = is_done.status();
    } else if (job.status.is_ok()) {
      job.status = device_.failure();
    }
    if (chunk.digests != nullptr && job.status.is_ok()) {
      if (!has_kernels_) hash_slots(job, chunk);
      job.sums->take({chunk.digests, chunk.leaves.end - chunk.leaves.begin});
    }
    --job.num_chunks_in_flight;
    chunks_.pop_front();
  }
}

// Without kernels the host hashes its own side: better than nothing, blind to the last hop.
void TransferPipe::hash_slots(const TransferJob& job, const Chunk& chunk) const {
  const FragmentTable& table = job.attachment->table;
  for (std::uint64_t leaf = chunk.leaves.begin; leaf < chunk.leaves.end; ++leaf) {
    const LeafExtent extent =
        table.leaf(static_cast<std::uint32_t>(leaf % table.leaves_per_block()));
    const std::byte* slot = job.slots[leaf / table.leaves_per_block()];
    digest_leaves({slot + extent.offset_bytes, extent.length_bytes},
                  {chunk.digests + (leaf - chunk.leaves.begin), 1});
  }
}

}  // namespace kvtier::transfer
