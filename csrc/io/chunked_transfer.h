// ChunkedTransfer: one batch of ops on its way through the kernel in chunks, so that a long save
// does not stand between a device and the next load. Not thread-safe.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <vector>

#include "io/io_op_queue.h"

namespace kvtier {

class ChunkedTransfer {
 public:
  explicit ChunkedTransfer(IoBatch batch);

  struct Chunk {
    std::uint64_t offset_bytes = 0;  // In the file.
    std::uint64_t length_bytes = 0;
    std::vector<iovec> pieces;
  };

  /// True while there is something to hand to the kernel: not after a chunk failed.
  bool has_next() const { return !is_bad_ && position_bytes_ < batch_.length_bytes; }
  /// The next chunk, at most kBatchBytesMax long. Requires has_next().
  void take_next(Chunk& chunk);
  /// The transfer goes to the kernel as it is, in one op without bytes (a sync).
  void start_whole() { ++num_running_; }
  /// A chunk ended; `is_whole`: with all its bytes.
  void finish(bool is_whole);
  /// Nothing more is handed to the kernel.
  void cut_short() { is_bad_ = true; }
  /// No chunk is with the kernel and none will follow.
  bool is_ended() const { return num_running_ == 0 && !has_next(); }
  /// After the end: every byte was transferred.
  bool is_good() const { return !is_bad_; }

  IoBatch& batch() { return batch_; }

 private:
  IoBatch batch_;
  const std::vector<std::span<std::byte>> pieces_;
  std::size_t piece_index_ = 0;
  std::uint64_t piece_position_bytes_ = 0;
  std::uint64_t position_bytes_ = 0;
  std::uint32_t num_running_ = 0;
  bool is_bad_ = false;
};

}  // namespace kvtier
