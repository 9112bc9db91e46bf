// Registration of arena pieces. One thread.
#include "io/registered_memory.h"

#ifdef KVTIER_HAVE_LIBURING

#include <algorithm>
#include <system_error>

#include "io/uring_ring.h"

namespace kvtier {
namespace {

// Registering faults the piece in and page-locks it: small enough to pass in a few milliseconds and
// to take no memory that is far from what is used.
constexpr std::uint64_t kPieceBytesMin = 16ull << 20;
constexpr std::uint64_t kPieceBytesMax = 1ull << 30;  // The kernel takes no longer ones.
constexpr std::uint64_t kTableEntriesMax = 1u << 14;  // Of one ring.

}  // namespace

void RegisteredMemory::add(std::span<std::byte> memory) {
  if (!memory.empty()) ranges_.push_back({memory, 0, {}, 0});
}

void RegisteredMemory::init(io_uring& ring) {
  std::uint64_t total_bytes = 0;
  for (const Range& range : ranges_) total_bytes += range.memory.size();
  if (total_bytes == 0) return;
  std::uint64_t piece_bytes = kPieceBytesMin;
  while (piece_bytes < kPieceBytesMax &&
         total_bytes / piece_bytes + ranges_.size() > kTableEntriesMax) {
    piece_bytes *= 2;
  }
  std::uint32_t num_entries = 0;
  for (Range& range : ranges_) {
    const std::uint64_t num_pieces = (range.memory.size() + piece_bytes - 1) / piece_bytes;
    range.piece_bytes = piece_bytes;
    range.table_index = num_entries;
    range.pieces.assign(std::min<std::uint64_t>(num_pieces, kTableEntriesMax - num_entries),
                        State::kUntouched);
    num_entries += static_cast<std::uint32_t>(range.pieces.size());
  }
  const int result = io_uring_register_buffers_sparse(&ring, num_entries);
  is_usable_ = result >= 0;
  if (!is_usable_) refusal_ = "buffers are not registered: " + uring_remedy(-result);
}

std::optional<std::uint16_t> RegisteredMemory::find(io_uring& ring, const iovec& bytes) {
  if (!is_usable_) return std::nullopt;
  const auto* begin = static_cast<const std::byte*>(bytes.iov_base);
  for (Range& range : ranges_) {
    if (begin < range.memory.data() || begin >= range.memory.data() + range.memory.size()) continue;
    const auto offset_bytes = static_cast<std::uint64_t>(begin - range.memory.data());
    const std::size_t piece_index = offset_bytes / range.piece_bytes;
    const std::size_t last_index = (offset_bytes + bytes.iov_len - 1) / range.piece_bytes;
    if (piece_index != last_index || piece_index >= range.pieces.size()) return std::nullopt;
    State& state = range.pieces[piece_index];
    if (state == State::kUntouched) {
      state = register_piece(ring, range, piece_index) ? State::kRegistered : State::kRefused;
    }
    if (state != State::kRegistered) return std::nullopt;
    return static_cast<std::uint16_t>(range.table_index + piece_index);
  }
  return std::nullopt;
}

bool RegisteredMemory::register_piece(io_uring& ring, Range& range, std::size_t piece_index) {
  const std::uint64_t begin_bytes = piece_index * range.piece_bytes;
  const std::uint64_t length_bytes = std::min(range.piece_bytes, range.memory.size() - begin_bytes);
  const iovec piece = {range.memory.data() + begin_bytes, length_bytes};
  const __u64 tag = 0;
  const int result = io_uring_register_buffers_update_tag(
      &ring, range.table_index + static_cast<unsigned>(piece_index), &piece, &tag, 1);
  if (result == 1) return true;
  // Nothing else will be taken either; what is registered stays in use.
  for (Range& other : ranges_) {
    std::replace(other.pieces.begin(), other.pieces.end(), State::kUntouched, State::kRefused);
  }
  if (refusal_.empty()) {
    const int os_errno = result < 0 ? -result : EINVAL;
    refusal_ = "buffers are not registered: " + std::generic_category().message(os_errno) +
               " (errno=" + std::to_string(os_errno) + "); " + uring_remedy(os_errno);
  }
  return false;
}

}  // namespace kvtier

#endif  // KVTIER_HAVE_LIBURING
