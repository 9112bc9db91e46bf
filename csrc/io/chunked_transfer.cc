// Chunks of a transfer. Not thread-safe.
#include "io/chunked_transfer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvtier {
namespace {

// What the kernel takes in one vectored call on every system.
constexpr std::size_t kChunkPiecesMax = 1024;
// Chunks of direct I/O must end where the next may begin.
constexpr std::uint64_t kChunkAlignmentBytes = 4096;

}  // namespace

ChunkedTransfer::ChunkedTransfer(IoBatch batch)
    : batch_(std::move(batch)), pieces_(batch_.pieces()) {}

void ChunkedTransfer::take_next(Chunk& chunk) {
  KVTIER_CHECK(has_next());
  chunk.offset_bytes = batch_.offset_bytes() + position_bytes_;
  chunk.length_bytes = 0;
  chunk.pieces.clear();
  // The first chunk ends on a boundary of the file, and so do all after it but the last.
  const std::uint64_t over_bytes = chunk.offset_bytes % kChunkAlignmentBytes;
  const std::uint64_t chunk_bytes_max = kBatchBytesMax - over_bytes;
  while (chunk.length_bytes < chunk_bytes_max && piece_index_ < pieces_.size()) {
    if (chunk.pieces.size() == kChunkPiecesMax) break;
    const auto rest = pieces_[piece_index_].subspan(piece_position_bytes_);
    const std::uint64_t taken_bytes =
        std::min<std::uint64_t>(rest.size(), chunk_bytes_max - chunk.length_bytes);
    chunk.pieces.push_back(iovec{rest.data(), taken_bytes});
    chunk.length_bytes += taken_bytes;
    piece_position_bytes_ += taken_bytes;
    if (taken_bytes == rest.size()) {
      ++piece_index_;
      piece_position_bytes_ = 0;
    }
  }
  position_bytes_ += chunk.length_bytes;
  ++num_running_;
}

void ChunkedTransfer::finish(bool is_whole) {
  KVTIER_CHECK(num_running_ > 0);
  --num_running_;
  if (!is_whole) is_bad_ = true;
}

}  // namespace kvtier
