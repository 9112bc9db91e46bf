// Chunks on lanes. Thread safety: see the header.
//
// A staging buffer belongs to its lane, and a lane runs in order: the next chunk of a lane cannot
// reach the buffer before the last one has left it. Digests and events belong to a chunk's place,
// which is taken again only after this thread saw its chunk end.
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
  device_.deallocate_page_locked(reinterpret_cast<std::byte*>(digests_));
}

void TransferPipe::submit_chunk(const std::shared_ptr<TransferJob>& job) {
  KVTIER_CHECK(has_room());
  const FragmentTable& table = job->attachment->table;
  const std::uint64_t rest_bytes = job->num_bytes() - leaf_place_bytes(table, job->next_leaf);
  // Only staging has two steps that can overlap; the others want few calls.
  const std::uint64_t bytes_max =
      job->method == TransferMethod::kStaged
          ? choose_chunk_bytes(job->num_chunks, rest_bytes, options_.chunk_bytes)
          : options_.chunk_bytes;
  const LeafRange leaves =
      cut_chunk(table, {job->next_leaf, job->num_leaves()},
                std::max<std::uint64_t>(bytes_max, kLeafBytes), leaves_per_chunk_);
  const bool is_zero_copy = job->method == TransferMethod::kZeroCopy;
  // One kernel at a time takes the whole budget, so it stays on one lane; staged chunks take half
  // each and alternate.
  const std::size_t lane_index = is_zero_copy ? 0 : next_lane_;
  next_lane_ = 1 - lane_index;
  Lane& lane = lanes_[lane_index];
  const std::size_t place = num_chunks_ % kChunksInFlightMax;
  std::uint64_t* digests = job->is_hashed() ? digests_at(place) : nullptr;
  job->status = order_lane(*job, lane_index);
  if (!job->status.is_ok()) return;
  job->status = submit(*job, leaves, lane, digests);
  // Whatever of a failed chunk is under way has to be waited for like a whole one.
  const Status recorded = device_.record_lane(lane.id, chunk_done_[place]);
  if (!recorded.is_ok()) {
    broken_ = recorded;
    job->status = recorded;
    return;
  }
  ++num_chunks_;
  lane.last = chunk_done_[place];
  lane.last_job_id = job->job_id;
  lane.is_last_zero_copy = is_zero_copy;
  ++job->num_chunks;
  ++job->num_chunks_in_flight;
  chunks_.push_back({job, leaves, place});
  if (job->status.is_ok()) job->next_leaf = leaves.end;
}

// Orders the lane after what the job's first chunk there has to come after.
Status TransferPipe::order_lane(TransferJob& job, std::size_t lane_index) {
  Lane& lane = lanes_[lane_index];
  const Lane& other = lanes_[1 - lane_index];
  // Kernels of both lanes at once would go beyond the budget where one of them has all of it.
  const bool is_budget_at_stake =
      job.method == TransferMethod::kZeroCopy || other.is_last_zero_copy;
  if (is_budget_at_stake && other.last.event_id != 0) {
    Status ordered = device_.order_lane_after(lane.id, other.last);
    if (!ordered.is_ok()) return ordered;
  }
  if (job.is_lane_ordered[lane_index]) return Status::ok();
  Status ordered = device_.order_lane_after(lane.id, job.ready);
  if (!ordered.is_ok()) return ordered;
  job.is_lane_ordered[lane_index] = true;
  if (job.has_begun) return Status::ok();
  job.has_begun = true;
  return device_.record_lane(lane.id, job.begin);
}

Status TransferPipe::submit(const TransferJob& job, const LeafRange& leaves, Lane& lane,
                            std::uint64_t* digests) {
  const bool is_save = job.direction == TransferDirection::kSave;
  const BlockCopyKind kind = is_save ? BlockCopyKind::kGather : BlockCopyKind::kScatter;
  if (job.method == TransferMethod::kZeroCopy) {
    return submit_kernel(job, leaves, lane.id, kind, nullptr, digests);
  }
  if (job.method == TransferMethod::kStaged) {
    plan_staging_copies(job, leaves, lane.staging);
    if (!is_save) {
      Status copied = device_.submit_copies(lane.id, pieces_);
      if (!copied.is_ok()) return copied;
    }
    Status moved = submit_kernel(job, leaves, lane.id, kind, lane.staging, digests);
    if (!moved.is_ok() || !is_save) return moved;
    return device_.submit_copies(lane.id, pieces_);
  }
  const bool is_hashed_here = digests != nullptr && has_kernels_;
  if (is_hashed_here && is_save) {
    Status hashed = submit_kernel(job, leaves, lane.id, BlockCopyKind::kHash, nullptr, digests);
    if (!hashed.is_ok()) return hashed;
  }
  plan_fragment_copies(job, leaves);
  Status copied = device_.submit_copies(lane.id, pieces_);
  if (!copied.is_ok() || !is_hashed_here || is_save) return copied;
  // What arrived, not what was sent.
  return submit_kernel(job, leaves, lane.id, BlockCopyKind::kHash, nullptr, digests);
}

// `staging` null: contiguous memory is the slots.
Status TransferPipe::submit_kernel(const TransferJob& job, const LeafRange& leaves, LaneId lane,
                                   BlockCopyKind kind, std::byte* staging, std::uint64_t* digests) {
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
  op.digests = digests;
  op.num_ctas = job.method == TransferMethod::kZeroCopy ? options_.max_ctas
                                                        : std::max(options_.max_ctas / 2, 1u);
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
    if (job.is_hashed() && job.status.is_ok()) {
      std::uint64_t* digests = digests_at(chunk.place);
      if (!has_kernels_) hash_slots(job, chunk.leaves, digests);
      std::copy(digests, digests + (chunk.leaves.end - chunk.leaves.begin),
                job.digests.begin() + static_cast<std::ptrdiff_t>(chunk.leaves.begin));
    }
    --job.num_chunks_in_flight;
    chunks_.pop_front();
  }
}

// Without kernels the host hashes its own side: better than nothing, blind to the last hop.
void TransferPipe::hash_slots(const TransferJob& job, const LeafRange& leaves,
                              std::uint64_t* digests) const {
  const FragmentTable& table = job.attachment->table;
  for (std::uint64_t leaf = leaves.begin; leaf < leaves.end; ++leaf) {
    const LeafExtent extent =
        table.leaf(static_cast<std::uint32_t>(leaf % table.leaves_per_block()));
    const std::byte* slot = job.slots[leaf / table.leaves_per_block()];
    digest_leaves({slot + extent.offset_bytes, extent.length_bytes},
                  {digests + (leaf - leaves.begin), 1});
  }
}

}  // namespace kvtier::transfer
