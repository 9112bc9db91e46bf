// Whole transfers from partial kernel calls. Thread-safe: no state.
#include "io/transfer_loop.h"

#include <limits.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

namespace kvtier {
namespace {

#ifdef IOV_MAX
constexpr std::size_t kCallPiecesMax = IOV_MAX;
#else
constexpr std::size_t kCallPiecesMax = 1024;
#endif

// Where a short transfer is resumed: no device asks for more than the size of a page.
constexpr std::uint64_t kResumeAlignmentBytes = 4096;

constexpr TimeNs kPauseMinNs = 50 * kNsPerUs;
constexpr TimeNs kPauseMaxNs = 10 * kNsPerMs;

class RetryBudget {
 public:
  explicit RetryBudget(const SystemCalls& calls) : calls_(calls) {}

  /// True when the call that failed with `os_errno` is to be made again (after a pause, if need
  /// be).
  bool is_retried(int os_errno) {
    if (os_errno == EINTR) return ++num_interrupted_ <= kInterruptedRetriesMax;
    if (os_errno != EAGAIN) return false;
    if (++num_again_ > kAgainRetriesMax) return false;
    calls_.pause(pause_ns_);
    pause_ns_ = std::min(pause_ns_ * 2, kPauseMaxNs);
    return true;
  }

  void reset() {
    num_interrupted_ = 0;
    num_again_ = 0;
    pause_ns_ = kPauseMinNs;
  }

 private:
  const SystemCalls& calls_;
  int num_interrupted_ = 0;
  int num_again_ = 0;
  TimeNs pause_ns_ = kPauseMinNs;
};

struct Transfer {
  const SystemCalls& calls;
  TransferDirection direction;
  int fd;
  std::uint64_t offset_bytes;
  std::span<const std::span<std::byte>> pieces;
  std::uint64_t want_bytes = 0;
};

// What one kernel call is asked to do.
struct Batch {
  std::array<iovec, kCallPiecesMax> pieces;
  std::size_t num_pieces = 0;
  std::uint64_t length_bytes = 0;
};

// Finds places in the list of pieces; moving forward does not walk the list from its begin again.
class PieceCursor {
 public:
  explicit PieceCursor(std::span<const std::span<std::byte>> pieces) : pieces_(pieces) {}

  void fill(std::uint64_t position_bytes, Batch& batch) {
    seek(position_bytes);
    batch.num_pieces = 0;
    batch.length_bytes = 0;
    std::uint64_t skipped_bytes = position_bytes - piece_start_bytes_;
    for (std::size_t index = piece_index_; index < pieces_.size(); ++index) {
      if (batch.num_pieces == kCallPiecesMax || batch.length_bytes == kCallBytesMax) return;
      const auto rest = pieces_[index].subspan(skipped_bytes);
      skipped_bytes = 0;
      if (rest.empty()) continue;
      const std::uint64_t taken_bytes =
          std::min<std::uint64_t>(rest.size(), kCallBytesMax - batch.length_bytes);
      batch.pieces[batch.num_pieces++] = iovec{rest.data(), taken_bytes};
      batch.length_bytes += taken_bytes;
    }
  }

 private:
  void seek(std::uint64_t position_bytes) {
    if (position_bytes < piece_start_bytes_) {
      piece_index_ = 0;
      piece_start_bytes_ = 0;
    }
    while (position_bytes - piece_start_bytes_ >= pieces_[piece_index_].size()) {
      piece_start_bytes_ += pieces_[piece_index_].size();
      ++piece_index_;
    }
  }

  std::span<const std::span<std::byte>> pieces_;
  std::size_t piece_index_ = 0;
  std::uint64_t piece_start_bytes_ = 0;
};

// One kernel call with its retries: the number of bytes, or minus the errno.
std::int64_t call_once(const Transfer& transfer, const Batch& batch, std::uint64_t position_bytes,
                       RetryBudget& budget) {
  const auto& call = transfer.direction == TransferDirection::kRead ? transfer.calls.preadv
                                                                    : transfer.calls.pwritev;
  while (true) {
    errno = 0;
    const ssize_t got = call(transfer.fd, batch.pieces.data(), static_cast<int>(batch.num_pieces),
                             static_cast<off_t>(transfer.offset_bytes + position_bytes));
    if (got >= 0) return got;
    const int os_errno = errno == 0 ? EIO : errno;
    if (!budget.is_retried(os_errno)) return -os_errno;
  }
}

// The place of the op at which a transfer that stopped after `done_bytes` is resumed.
std::uint64_t resume_position(std::uint64_t offset_bytes, std::uint64_t done_bytes) {
  const std::uint64_t file_bytes = offset_bytes + done_bytes;
  const std::uint64_t back_bytes = file_bytes % kResumeAlignmentBytes;
  return done_bytes - std::min(back_bytes, done_bytes);
}

std::string describe(const Transfer& transfer, std::uint64_t done_bytes) {
  const char* action =
      transfer.direction == TransferDirection::kRead ? "cannot read file: " : "cannot write file: ";
  return action + std::string("fd=") + std::to_string(transfer.fd) +
         " offset_bytes=" + std::to_string(transfer.offset_bytes) +
         " want_bytes=" + std::to_string(transfer.want_bytes) +
         " got_bytes=" + std::to_string(done_bytes);
}

TransferOutcome failed(const Transfer& transfer, std::uint64_t done_bytes, int os_errno) {
  const std::string text = describe(transfer, done_bytes);
  if (os_errno == 0) return {Status(StatusCode::kIoError, text), done_bytes};
  return {Status::from_errno(os_errno, text), done_bytes};
}

TransferOutcome run_transfer(const Transfer& transfer) {
  RetryBudget budget(transfer.calls);
  PieceCursor cursor(transfer.pieces);
  Batch batch;
  std::uint64_t done_bytes = 0;
  std::uint64_t position_bytes = 0;
  while (done_bytes < transfer.want_bytes) {
    cursor.fill(position_bytes, batch);
    const std::int64_t got = call_once(transfer, batch, position_bytes, budget);
    const bool is_exact = position_bytes == done_bytes;
    const bool is_unaligned = (transfer.offset_bytes + position_bytes) % kResumeAlignmentBytes != 0;
    if (got < 0) {
      // The exact place is tried only after the aligned one twice ended there; that the kernel then
      // minds the alignment means that the file ends inside this page.
      const bool is_end = got == -EINVAL && done_bytes > 0 && is_exact && is_unaligned;
      return failed(transfer, done_bytes, is_end ? 0 : static_cast<int>(-got));
    }
    const auto got_bytes = static_cast<std::uint64_t>(got);
    if (got_bytes > batch.length_bytes) return failed(transfer, done_bytes, EIO);
    if (position_bytes + got_bytes > done_bytes) {
      budget.reset();
      done_bytes = position_bytes + got_bytes;
      // A direct transfer may stop on a sector inside a page, where the next call must not begin.
      position_bytes = got_bytes == batch.length_bytes
                           ? done_bytes
                           : resume_position(transfer.offset_bytes, done_bytes);
    } else if (is_exact) {
      return failed(transfer, done_bytes, 0);
    } else {
      position_bytes = done_bytes;
    }
  }
  return {Status::ok(), done_bytes};
}

}  // namespace

TransferOutcome transfer_pieces(const SystemCalls& calls, TransferDirection direction, int fd,
                                std::uint64_t offset_bytes,
                                std::span<const std::span<std::byte>> pieces) {
  Transfer transfer{calls, direction, fd, offset_bytes, pieces};
  for (const auto& piece : pieces) transfer.want_bytes += piece.size();
  return run_transfer(transfer);
}

Status sync_data(const SystemCalls& calls, int fd) {
  RetryBudget budget(calls);
  while (calls.fdatasync(fd) != 0) {
    const int os_errno = errno;
    if (budget.is_retried(os_errno)) continue;
    return Status::from_errno(os_errno, "cannot sync file: fd=" + std::to_string(fd));
  }
  return Status::ok();
}

}  // namespace kvtier
