// The loop that makes one whole transfer, or a precise error, out of kernel calls that may be
// interrupted, short or refused. Free functions without state; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "io/system_calls.h"

namespace kvtier {

enum class TransferDirection : std::uint8_t { kRead, kWrite };

struct TransferOutcome {
  Status status;  // Ok only when every byte was transferred.
  std::uint64_t transferred_bytes = 0;
};

/// The kernel cuts longer calls silently (MAX_RW_COUNT).
inline constexpr std::uint64_t kCallBytesMax = 0x7ffff000;
/// EINTR is retried at once, EAGAIN after pauses that double from 50 us to 10 ms, each this often
/// in a row without a byte of progress; then the op fails with that errno (EAGAIN: after about 0.5
/// s).
inline constexpr int kInterruptedRetriesMax = 1000;
inline constexpr int kAgainRetriesMax = 56;

/// Transfers all `pieces` from or to `fd` at `offset_bytes`, in order, contiguous in the file.
/// Blocks. Returns kIoError with os_errno 0 when the file ends (or takes no more bytes) before the
/// last byte; other failures with the kernel's errno. The texts state want_bytes and got_bytes.
TransferOutcome transfer_pieces(const SystemCalls& calls, TransferDirection direction, int fd,
                                std::uint64_t offset_bytes,
                                std::span<const std::span<std::byte>> pieces);

/// fdatasync with the same retries.
Status sync_data(const SystemCalls& calls, int fd);

}  // namespace kvtier
