// TransferJob: one save or load from its submission to its result. Used by the engine's thread,
// but for the fields that say otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "device/fragment_table.h"
#include "transfer/block_sums.h"
#include "transfer/chunk_cutter.h"
#include "transfer/page_locked_ranges.h"
#include "transfer/ready_point.h"
#include "transfer/transfer_types.h"

namespace kvtier::transfer {

/// The tensors of one geometry, known to the device.
struct Attachment {
  FragmentTable table;
  std::uint32_t table_id = 0;
  /// One address of each tensor and the allocation it lay in; see Device::identify_memory().
  std::vector<std::pair<const std::byte*, std::uint64_t>> memory;
  std::vector<const std::byte*> borders;  // Where tensors begin and end, in ascending order.
};

struct TransferJob {
  // Constant after submission.
  TransferJobId job_id = 0;
  TransferDirection direction = TransferDirection::kSave;
  std::shared_ptr<const Attachment> attachment;
  std::vector<std::int64_t> block_ids;
  std::vector<std::byte*> slots;
  std::vector<ChecksumSeed> seeds;
  std::vector<std::uint64_t> expected;
  TransferMethod wanted_method = TransferMethod::kAuto;
  std::shared_ptr<const ReadyPoint> ready;
  std::function<void(TransferResult)> on_result;  // Null: the result waits for poll() or take().

  // Of the engine's thread.
  TransferMethod method = TransferMethod::kAuto;
  bool is_prepared = false;    // The method was chosen, or `status` says why there is none.
  Reach reach = Reach::kNone;  // Who reaches all its slots.
  bool is_bounced = false;     // Its host side is the ring instead of its slots.
  std::shared_ptr<const PageLockedView> page_locked;  // As it was when the job was prepared.
  Event begin;                                        // Recorded when the device reaches the job.
  bool has_begun = false;
  std::uint64_t next_leaf = 0;
  std::uint64_t num_chunks = 0;
  std::uint32_t num_chunks_in_flight = 0;
  LeafRange hashed_ahead;         // Of a gentle save: what its last kernel hashes.
  std::size_t ahead_index = 0;    // Which of the pipe's buffers has those digests.
  std::optional<BlockSums> sums;  // When there are seeds.
  Status status;

  // Guarded by the engine's mutex.
  // After the last byte; null: not recorded yet, or ended. Callers who order streams after it hold
  // it, so that they need no mutex while the device is told.
  std::shared_ptr<const ReadyPoint> done;
  bool is_ended = false;  // The result is there, and nobody touches the buffers any more.
  TransferResult result;

  // Atomic, relaxed: a wish, looked at before each chunk.
  std::atomic<bool> is_cancelled{false};

  bool is_hashed() const { return !seeds.empty(); }
  std::uint64_t num_leaves() const {
    return block_ids.size() * std::uint64_t{attachment->table.leaves_per_block()};
  }
  std::uint64_t num_bytes() const { return block_ids.size() * attachment->table.block_bytes(); }
  /// The device-side method that serves an event of the done kind: every chunk was submitted.
  bool is_submitted() const { return next_leaf == num_leaves(); }
};

}  // namespace kvtier::transfer
