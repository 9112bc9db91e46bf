// TransferPipe: carries the jobs of one direction out, chunk by chunk, on two lanes with a staging
// buffer each, one kernel at a time. Used by the engine's thread only.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "device/device.h"
#include "transfer/chunk_cutter.h"
#include "transfer/transfer_job.h"

namespace kvtier::transfer {

struct PipeOptions {
  TransferDirection direction = TransferDirection::kSave;
  std::uint64_t chunk_bytes = 0;
  std::uint32_t max_ctas = 0;
};

class TransferPipe {
 public:
  /// `device` outlives the pipe. Takes lanes, staging buffers and page-locked memory for digests.
  static Result<std::unique_ptr<TransferPipe>> create(Device& device, const PipeOptions& options);
  /// Requires: no chunk in flight, or a device that failed.
  ~TransferPipe();

  bool has_room() const { return chunks_.size() < kChunksInFlightMax; }
  bool has_chunks() const { return !chunks_.empty(); }
  /// Whether it is time for more chunks of a job that was begun: calls to a device are cheaper in a
  /// row than one by one, and there is more than enough under way before.
  bool is_drained() const { return chunks_.size() <= kChunksInFlightMax / 2; }

  /// Submits the job's next chunk. Requires: has_room(), a job that has leaves left and a method.
  /// A failure stands in the job's status; a chunk may be in flight all the same.
  void submit_chunk(const std::shared_ptr<TransferJob>& job);
  /// Records the job's done event behind all its chunks. Requires: one was submitted.
  Status record_done(TransferJob& job, Event done);
  /// Takes in chunks that have ended, in order. After a failure of the device: all of them.
  void collect();

  /// Not ok: something was submitted whose end cannot be seen, so the buffers of its job belong to
  /// the device until that is destroyed. The pipe is of no more use.
  const Status& broken() const { return broken_; }

  std::uint64_t staging_bytes() const { return staging_bytes_; }
  std::uint64_t num_chunks() const { return num_chunks_; }

  static constexpr std::size_t kNumLanes = 2;
  /// One that runs and the others behind it, so that the link is busy while this thread is away or
  /// asleep. More: a job that is cancelled ends later.
  static constexpr std::size_t kChunksInFlightMax = 8;

 private:
  struct Chunk {
    std::shared_ptr<TransferJob> job;
    LeafRange leaves;
    std::size_t place = 0;             // Of its digests and its event.
    std::uint64_t* digests = nullptr;  // Null: it is not hashed.
  };
  struct Lane {
    LaneId id;
    bool is_created = false;
    std::byte* staging = nullptr;
    Event last;  // After the latest chunk.
    TransferJobId last_job_id = 0;
  };

  TransferPipe(Device& device, const PipeOptions& options) : device_(device), options_(options) {}
  Status prepare();
  LeafRange cut_next(const TransferJob& job) const;
  std::size_t take_place();
  Status order_lane(TransferJob& job, std::size_t lane_index);
  Status submit(const TransferJob& job, const Chunk& chunk, std::size_t lane_index);
  Status submit_staged(const TransferJob& job, const Chunk& chunk, std::size_t lane_index);
  Status submit_fragments(const TransferJob& job, const Chunk& chunk, std::size_t lane_index);
  Status submit_kernel(const TransferJob& job, const Chunk& chunk, std::size_t lane_index,
                       BlockCopyKind kind, std::byte* staging);
  Status end_first_kernel(std::size_t lane_index);
  void plan_fragment_copies(const TransferJob& job, const LeafRange& leaves);
  void plan_staging_copies(const TransferJob& job, const LeafRange& leaves, std::byte* staging);
  void hash_slots(const TransferJob& job, const Chunk& chunk) const;

  // Constant after create().
  Device& device_;
  const PipeOptions options_;
  std::uint64_t leaves_per_chunk_ = 0;
  std::uint64_t staging_bytes_ = 0;
  std::uint64_t* digests_ = nullptr;  // Page-locked: kChunksInFlightMax times leaves_per_chunk_.
  bool has_kernels_ = false;

  std::array<Lane, kNumLanes> lanes_;
  std::array<Event, kChunksInFlightMax> chunk_done_{};
  Event kernel_done_;  // For kernels that are not the end of their chunk.
  // After the latest kernel, and its lane; no event: all kernels were seen to end.
  Event last_kernel_;
  std::size_t last_kernel_lane_ = 0;
  std::deque<Chunk> chunks_;  // In order of submission.
  std::uint64_t num_chunks_ = 0;
  std::uint64_t num_chunks_since_idle_ = 0;
  std::size_t next_lane_ = 0;
  Status broken_;
  std::vector<CopyPiece> pieces_;  // Kept for their memory.
  std::vector<BlockPlace> places_;
};

}  // namespace kvtier::transfer
