// What the steps of a chunk are made of: copies, kernels, and the host's own share. Thread safety:
// see the header of the pipe.
#include <algorithm>
#include <utility>

#include "base/checksum.h"
#include "layout/copy_plan.h"
#include "transfer/transfer_pipe.h"

namespace kvtier::transfer {

Status TransferPipe::submit_copies(const TransferJob& job, const Chunk& chunk,
                                   bool is_after_kernel) {
  pieces_.clear();
  if (chunk.staging != nullptr) {
    plan_staging_copies(job, chunk);
  } else {
    plan_fragment_copies(job, chunk);
  }
  layout::CopyBorders borders{job.attachment->borders, job.page_locked->borders};
  if (job.direction == TransferDirection::kLoad) std::swap(borders.source, borders.target);
  layout::cut_at_borders(borders, pieces_, cut_pieces_);
  if (is_after_kernel && chunk.digests != nullptr) {
    const auto* source = reinterpret_cast<const std::byte*>(device_digests_of(job, chunk));
    const std::uint64_t num_leaves = chunk.leaves.end - chunk.leaves.begin;
    pieces_.push_back(
        {source, reinterpret_cast<std::byte*>(chunk.digests), num_leaves * sizeof(std::uint64_t)});
  }
  return device_.submit_copies(lanes_[kCopies].id, pieces_);
}

// Digests that a copy follows travel with it: kernels that write to the host slow the copies down.
// Those of loads are written to the host all the same, since a copy to the host would have to wait
// for a save's.
Status TransferPipe::submit_kernel(const TransferJob& job, const Chunk& chunk,
                                   bool is_copied_after) {
  const bool is_save = job.direction == TransferDirection::kSave;
  std::byte* staging = chunk.staging == nullptr ? nullptr : chunk.staging->memory;
  const bool is_ahead = job.hashed_ahead.end > 0;
  const LeafRange& leaves = is_ahead ? job.hashed_ahead : chunk.leaves;
  const FragmentTable& table = job.attachment->table;
  const std::uint64_t per_block = table.leaves_per_block();
  const std::uint64_t first_block = leaves.begin / per_block;
  const std::uint64_t last_block = (leaves.end - 1) / per_block;
  const std::uint64_t begin_bytes = leaf_place_bytes(table, leaves.begin);
  places_.clear();
  std::byte* whole = staging == nullptr ? chunk.bounce : staging;
  for (std::uint64_t block = first_block; block <= last_block; ++block) {
    // Staging holds the chunk alone: the first block's host order may begin before it.
    std::byte* linear =
        whole == nullptr ? job.slots[block] : whole + (block * table.block_bytes() - begin_bytes);
    places_.push_back({job.block_ids[block], linear});
  }
  BlockCopy op;
  op.kind = job.method == TransferMethod::kCopyEngine ? BlockCopyKind::kHash
            : is_save                                 ? BlockCopyKind::kGather
                                                      : BlockCopyKind::kScatter;
  op.table_id = job.attachment->table_id;
  op.places = places_;
  op.first_leaf = static_cast<std::uint32_t>(leaves.begin - first_block * per_block);
  op.num_leaves = static_cast<std::uint32_t>(leaves.end - leaves.begin);
  op.digests = chunk.digests;
  if (is_copied_after && chunk.digests != nullptr) op.digests = device_digests_of(job, chunk);
  op.num_ctas = options_.max_ctas;
  return device_.submit_block_copy(lanes_[kKernels].id, op);
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

void TransferPipe::plan_fragment_copies(const TransferJob& job, const Chunk& chunk) {
  const std::uint64_t chunk_begin_bytes =
      leaf_place_bytes(job.attachment->table, chunk.leaves.begin);
  const std::uint64_t block_bytes = job.attachment->table.block_bytes();
  const auto direction = job.direction == TransferDirection::kSave
                             ? layout::PlanDirection::kToLinear
                             : layout::PlanDirection::kFromLinear;
  for_each_stretch(job, chunk.leaves,
                   [&](std::uint64_t block, std::uint64_t begin_bytes, std::uint64_t end_bytes) {
                     std::byte* linear =
                         chunk.bounce == nullptr
                             ? job.slots[block]
                             : chunk.bounce + (block * block_bytes - chunk_begin_bytes);
                     layout::append_fragment_pieces(job.attachment->table,
                                                    {job.block_ids[block], begin_bytes, end_bytes},
                                                    linear, direction, pieces_);
                   });
}

void TransferPipe::plan_staging_copies(const TransferJob& job, const Chunk& chunk) {
  std::byte* const staging = chunk.staging->memory;
  std::byte* place = staging;
  for_each_stretch(job, chunk.leaves,
                   [&](std::uint64_t block, std::uint64_t begin_bytes, std::uint64_t end_bytes) {
                     std::byte* slot = chunk.bounce == nullptr ? job.slots[block] + begin_bytes
                                                               : chunk.bounce + (place - staging);
                     const std::uint64_t length_bytes = end_bytes - begin_bytes;
                     if (job.direction == TransferDirection::kSave) {
                       layout::append_piece({place, slot, length_bytes}, pieces_);
                     } else {
                       layout::append_piece({slot, place, length_bytes}, pieces_);
                     }
                     place += length_bytes;
                   });
}

void TransferPipe::fill_bounce(const TransferJob& job, const Chunk& chunk) {
  std::byte* place = chunk.bounce;
  for_each_stretch(job, chunk.leaves,
                   [&](std::uint64_t block, std::uint64_t begin_bytes, std::uint64_t end_bytes) {
                     const std::uint64_t length_bytes = end_bytes - begin_bytes;
                     copy_bytes({place, length_bytes},
                                {job.slots[block] + begin_bytes, length_bytes});
                     place += length_bytes;
                   });
  bounced_bytes_ += static_cast<std::uint64_t>(place - chunk.bounce);
}

void TransferPipe::empty_bounce(const TransferJob& job, const Chunk& chunk) {
  const std::byte* place = chunk.bounce;
  for_each_stretch(job, chunk.leaves,
                   [&](std::uint64_t block, std::uint64_t begin_bytes, std::uint64_t end_bytes) {
                     const std::uint64_t length_bytes = end_bytes - begin_bytes;
                     copy_bytes({job.slots[block] + begin_bytes, length_bytes},
                                {place, length_bytes});
                     place += length_bytes;
                   });
  bounced_bytes_ += static_cast<std::uint64_t>(place - chunk.bounce);
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
