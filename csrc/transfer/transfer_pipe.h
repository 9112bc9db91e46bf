// TransferPipe: carries the jobs of one direction out, chunk by chunk, on two lanes with a staging
// buffer each. Used by the engine's thread only.
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
  /// Two a lane: one that runs and one that waits behind it, so that no lane idles while this
  /// thread looks elsewhere.
  static constexpr std::size_t kChunksInFlightMax = 4;

 private:
  struct Chunk {
    std::shared_ptr<TransferJob> job;
    LeafRange leaves;
    std::size_t place = 0;  // Of its digests and its event.
  };
  struct Lane {
    LaneId id;
    bool is_created = false;
    std::byte* staging = nullptr;
    Event last;  // After the latest chunk.
    TransferJobId last_job_id = 0;
    bool is_last_zero_copy = false;
  };

  TransferPipe(Device& device, const PipeOptions& options) : device_(device), options_(options) {}
  Status prepare();
  Status order_lane(TransferJob& job, std::size_t lane_index);
  Status submit(const TransferJob& job, const LeafRange& leaves, Lane& lane,
                std::uint64_t* digests);
  Status submit_kernel(const TransferJob& job, const LeafRange& leaves, LaneId lane,
                       BlockCopyKind kind, std::byte* staging, std::uint64_t* digests);
  void plan_fragment_copies(const TransferJob& job, const LeafRange& leaves);
  void plan_staging_copies(const TransferJob& job, const LeafRange& leaves, std::byte* staging);
  void hash_slots(const TransferJob& job, const LeafRange& leaves, std::uint64_t* digests) const;
  std::uint64_t* digests_at(std::size_t place) const {
    return digests_ + place * leaves_per_chunk_;
  }

  // Constant after create().
  Device& device_;
  const PipeOptions options_;
  std::uint64_t leaves_per_chunk_ = 0;
  std::uint64_t staging_bytes_ = 0;
  std::uint64_t* digests_ = nullptr;  // Page-locked: kChunksInFlightMax times leaves_per_chunk_.
  bool has_kernels_ = false;

  std::array<Lane, kNumLanes> lanes_;
  std::array<Event, kChunksInFlightMax> chunk_done_{};
  std::deque<Chunk> chunks_;  // In order of submission.
  std::uint64_t num_chunks_ = 0;
  std::size_t next_lane_ = 0;
  Status broken_;
  std::vector<CopyPiece> pieces_;  // Kept for their memory.
  std::vector<BlockPlace> places_;
};

}  // namespace kvtier::transfer
