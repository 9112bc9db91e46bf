// TransferPipe: carries the jobs of one direction out, chunk by chunk, on a lane for kernels and
// one for copies, with two staging buffers between them. Used by the engine's thread only.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "device/device.h"
#include "transfer/bounce_ring.h"
#include "transfer/chunk_cutter.h"
#include "transfer/transfer_job.h"

namespace kvtier::transfer {

struct PipeOptions {
  TransferDirection direction = TransferDirection::kSave;
  std::uint64_t chunk_bytes = 0;
  std::uint32_t max_ctas = 0;
  bool are_saves_gentle = false;
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

  /// Makes the ring ready for jobs that need it.
  Status take_ring() { return ring_.take(options_.chunk_bytes); }

  /// Submits the job's next chunk. Requires: has_room(), a job that has leaves left and a method.
  /// A failure stands in the job's status; a chunk may be in flight all the same, also when this
  /// throws std::bad_alloc.
  void submit_chunk(const std::shared_ptr<TransferJob>& job);
  /// Records the job's done event behind all its chunks. Requires: one was submitted.
  Status record_done(TransferJob& job, Event done);
  /// Takes in chunks that have ended, in order. After a failure of the device: all of them. Returns
  /// their number. May throw std::bad_alloc, and then goes on where it was with the next call.
  std::size_t collect();

  /// Not ok: something was submitted whose end cannot be seen yet. Its job does not end before
  /// that; the pipe takes no chunks. Each collect() tries again.
  const Status& broken() const { return broken_; }

  std::uint64_t staging_bytes() const { return staging_bytes_; }
  std::uint64_t ring_bytes() const { return ring_.num_bytes(); }
  std::uint64_t bounced_bytes() const { return bounced_bytes_; }
  std::uint64_t num_chunks() const { return num_chunks_; }
  /// Whether the next chunk that ends may be the last.
  bool is_ending() const { return chunks_.size() <= 1; }

  static constexpr std::size_t kNumStagings = 2;
  /// One that runs and the others behind it, so that the link is busy while this thread is away or
  /// asleep. More: a job that is cancelled ends later.
  static constexpr std::size_t kChunksInFlightMax = 8;

 private:
  static constexpr std::size_t kKernels = 0;
  static constexpr std::size_t kCopies = 1;

  struct Lane {
    LaneId id;
    bool is_created = false;
  };
  struct Staging {
    std::byte* memory = nullptr;
    Event emptied;  // After the chunk that was in it; no event: it was seen to end.
  };
  /// Digests on the device of many chunks to come, made by one kernel.
  struct Ahead {
    std::uint64_t* digests = nullptr;
    Event emptied;  // After the last chunk that copied some of them; no event: it was seen to end.
  };
  /// The lanes of a chunk's steps: one, or the second after the first.
  struct Steps {
    std::size_t first = kCopies;
    std::size_t last = kCopies;
  };
  struct Chunk {
    std::shared_ptr<TransferJob> job;
    LeafRange leaves;
    std::size_t place = 0;             // Of its digests and its event.
    std::uint64_t* digests = nullptr;  // On the host; null: it is not hashed.
    Staging* staging = nullptr;        // Null: it needs none.
    std::byte* bounce = nullptr;       // Its place in the ring; null: the slots themselves.
    Steps steps;
    bool is_sealed = false;  // The event stands behind all of it.
  };
  TransferPipe(Device& device, const PipeOptions& options)
      : device_(device), options_(options), ring_(device, kChunksInFlightMax) {}
  Status prepare();
  LeafRange cut_next(const TransferJob& job) const;
  Steps steps_of(const TransferJob& job) const;
  std::size_t take_place();
  Staging& take_staging();
  bool is_hashed_ahead(const TransferJob& job) const;
  Status begin_ahead(TransferJob& job, const Chunk& chunk);
  std::uint64_t* device_digests_of(const TransferJob& job, const Chunk& chunk) const;
  Status order_lane(TransferJob& job, std::size_t lane_index);
  Status submit_steps(TransferJob& job, const Chunk& chunk);
  Status submit_copies(const TransferJob& job, const Chunk& chunk, bool is_after_kernel);
  Status submit_kernel(const TransferJob& job, const Chunk& chunk, bool is_copied_after);
  Status order_steps(const Steps& steps);
  // Records the chunk's event behind all that was submitted of it, or marks the pipe as broken.
  void seal(Chunk& chunk);
  void plan_fragment_copies(const TransferJob& job, const Chunk& chunk);
  void plan_staging_copies(const TransferJob& job, const Chunk& chunk);
  void hash_slots(const TransferJob& job, const Chunk& chunk) const;
  // Between the chunk's place in the ring and its slots.
  void fill_bounce(const TransferJob& job, const Chunk& chunk);
  void empty_bounce(const TransferJob& job, const Chunk& chunk);

  // Constant after create().
  Device& device_;
  const PipeOptions options_;
  std::uint64_t leaves_per_chunk_ = 0;
  std::uint64_t staging_bytes_ = 0;
  // uint64[kChunksInFlightMax, leaves_per_chunk_], page-locked, and the same on the device.
  std::uint64_t* digests_ = nullptr;
  std::uint64_t* device_digests_ = nullptr;
  bool has_kernels_ = false;
  std::uint64_t leaves_ahead_ = 0;  // One kernel's of a gentle save at most; 0: there are none.

  std::array<Lane, 2> lanes_;
  std::array<Staging, kNumStagings> stagings_;
  std::array<Ahead, kNumStagings> aheads_;
  std::uint64_t num_aheads_ = 0;
  std::array<Event, kChunksInFlightMax> chunk_done_{};
  Event step_done_;           // Between the steps of a chunk: what waits for it keeps its point.
  std::deque<Chunk> chunks_;  // In order of submission.
  std::uint64_t num_chunks_ = 0;
  std::uint64_t num_chunks_since_idle_ = 0;
  std::uint64_t num_staged_ = 0;
  std::uint64_t bounced_bytes_ = 0;
  Status broken_;
  BounceRing ring_;
  std::vector<CopyPiece> pieces_;  // Kept for their memory.
  std::vector<CopyPiece> cut_pieces_;
  std::vector<BlockPlace> places_;
};

}  // namespace kvtier::transfer
