// PagedMover: moves the blocks of one save or load of a store between its slots and the rows of an
// engine's paged tensors. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "paged/paged_attachment.h"
#include "store/block_mover.h"
#include "transfer/transfer_engine.h"

namespace kvtier::paged {

class PagedMover final : public BlockMover {
 public:
  /// block_ids: int64[num_blocks], the row of each key of the call. ready: what comes before the
  /// first byte.
  PagedMover(std::shared_ptr<const PagedAttachment> attachment,
             transfer::TransferDirection direction, std::vector<std::int64_t> block_ids,
             std::shared_ptr<const transfer::ReadyPoint> ready);

  Result<MoveId> start(BlockMove move, OnEnd on_end) override;
  std::optional<BlockMoveResult> cancel(MoveId move_id, bool are_slots_dead) override;
  void finish_starting() override;

  /// int64[num_blocks], by position in the call's keys.
  const std::vector<std::int64_t>& block_ids() const { return block_ids_; }

  /// Orders work that is put on `stream` from now on after the last byte of all moves. Blocks until
  /// the last of them was started, which for blocks on disk is when they were read. kTimeout after
  /// `timeout_ns`.
  Status order_stream_after(StreamId stream, TimeNs timeout_ns);

  /// Memory of the CPU has no streams to order.
  bool is_on_host() const { return device_->engine().device_info().kind == DeviceKind::kHost; }

 private:
  void end_move(transfer::TransferResult result, const std::vector<std::int64_t>& block_ids,
                const std::vector<std::size_t>& block_indices, const OnEnd& on_end);

  // Constant after construction.
  const std::shared_ptr<PagedDevice> device_;
  const transfer::TransferDirection direction_;
  const std::vector<std::int64_t> block_ids_;

  // Guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable finished_;
  std::shared_ptr<const transfer::ReadyPoint> ready_;  // Let go when all moves were started.
  std::shared_ptr<const PagedAttachment> attachment_;  // Let go when all moves have ended.
  std::vector<transfer::TransferJobId> job_ids_;
  std::size_t num_running_ = 0;
  bool is_finished_ = false;
};

}  // namespace kvtier::paged
