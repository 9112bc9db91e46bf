// A store's moves as jobs of the transfer engine. Thread-safe.
#include "paged/paged_mover.h"

#include <new>
#include <unordered_map>
#include <utility>

#include "base/wait_piece.h"

namespace kvtier::paged {
namespace {

/// The engine names blocks by their rows, of which a load has each at most once; the store by their
/// place in the call.
std::vector<std::size_t> indices_of(const std::vector<std::int64_t>& undefined_block_ids,
                                    const std::vector<std::int64_t>& block_ids,
                                    const std::vector<std::size_t>& block_indices) {
  if (undefined_block_ids.empty()) return {};
  std::unordered_map<std::int64_t, std::size_t> index_of;
  for (std::size_t k = 0; k < block_ids.size(); ++k) index_of[block_ids[k]] = block_indices[k];
  std::vector<std::size_t> indices;
  for (const std::int64_t block_id : undefined_block_ids) indices.push_back(index_of.at(block_id));
  return indices;
}

}  // namespace

PagedMover::PagedMover(std::shared_ptr<const PagedAttachment> attachment,
                       transfer::TransferDirection direction, std::vector<std::int64_t> block_ids,
                       std::shared_ptr<const transfer::ReadyPoint> ready)
    : device_(attachment->device()),
      direction_(direction),
      block_ids_(std::move(block_ids)),
      ready_(std::move(ready)),
      attachment_(std::move(attachment)) {}

Result<BlockMover::MoveId> PagedMover::start(BlockMove move, OnEnd on_end) {
  std::vector<std::int64_t> block_ids;
  for (const std::size_t index : move.block_indices) block_ids.push_back(block_ids_[index]);
  transfer::TransferRequest request;
  request.direction = direction_;
  request.block_ids = block_ids;
  request.slots = move.slots;
  request.seeds = move.seeds;
  request.checksums = move.checksums;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_finished_) return Status(StatusCode::kClosed, "the job takes no more moves");
    request.attachment_id = attachment_->attachment_id();
    request.ready = ready_;
    job_ids_.reserve(job_ids_.size() + 1);  // What is submitted must be noted.
    ++num_running_;
  }
  // The store keeps the mover until its moves have ended.
  request.on_result = [this, block_ids, block_indices = std::move(move.block_indices),
                       on_end = std::move(on_end)](transfer::TransferResult result) {
    end_move(std::move(result), block_ids, block_indices, on_end);
  };
  Result<transfer::TransferJobId> submitted = device_->engine().submit(request);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!submitted.is_ok()) {
    --num_running_;
    return submitted.status();
  }
  job_ids_.push_back(submitted.value());
  return submitted.value();
}

void PagedMover::end_move(transfer::TransferResult result,
                          const std::vector<std::int64_t>& block_ids,
                          const std::vector<std::size_t>& block_indices, const OnEnd& on_end) {
  BlockMoveResult ended;
  ended.status = std::move(result.status);
  ended.checksums = std::move(result.checksums);
  try {
    ended.undefined_indices = indices_of(result.undefined_block_ids, block_ids, block_indices);
  } catch (const std::bad_alloc&) {
    // Which of them it was is lost with the memory: all.
    ended.undefined_indices = block_indices;
  }
  std::shared_ptr<const PagedAttachment> last;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    --num_running_;
    if (is_finished_ && num_running_ == 0) last = std::move(attachment_);
  }
  last.reset();
  on_end(std::move(ended));
}

std::optional<BlockMoveResult> PagedMover::cancel(MoveId move_id, bool /*are_slots_dead*/) {
  device_->engine().cancel(move_id);
  return std::nullopt;
}

void PagedMover::finish_starting() {
  std::shared_ptr<const PagedAttachment> last;
  const std::lock_guard<std::mutex> lock(mutex_);
  is_finished_ = true;
  ready_.reset();
  if (num_running_ == 0) last = std::move(attachment_);
  finished_.notify_all();
}

Status PagedMover::order_stream_after(StreamId stream, TimeNs timeout_ns) {
  const TimeNs deadline_ns = device_->deadline_ns(timeout_ns);
  std::vector<transfer::TransferJobId> job_ids;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!is_finished_) {
      const TimeNs now_ns = device_->clock().now_ns();
      if (now_ns >= deadline_ns) {
        return Status(StatusCode::kTimeout, "blocks of the job are still being read from disk");
      }
      finished_.wait_for(lock, piece_until(now_ns, deadline_ns));
    }
    job_ids = job_ids_;
  }
  for (const transfer::TransferJobId job_id : job_ids) {
    const Status ordered = device_->engine().order_stream_after(job_id, stream, deadline_ns);
    // One that has ended needs no order.
    if (!ordered.is_ok() && ordered.code() != StatusCode::kNotFound) return ordered;
  }
  return Status::ok();
}

}  // namespace kvtier::paged
