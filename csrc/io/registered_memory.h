// RegisteredMemory: pieces of the arenas that a ring holds page-locked, each registered when an op
// first touches it. Used by the ring's thread only.
#pragma once

#ifdef KVTIER_HAVE_LIBURING

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvtier {

class RegisteredMemory {
 public:
  /// Before init(). The memory stays mapped as long as the ring lives.
  void add(std::span<std::byte> memory);
  /// Reserves the table. Without it, and after a refusal, find() finds nothing.
  void init(io_uring& ring);
  /// The index of the registered piece that holds all of `bytes`; nothing: use a plain op.
  std::optional<std::uint16_t> find(io_uring& ring, const iovec& bytes);
  /// Why memory is not registered; empty while nothing was refused.
  const std::string& refusal() const { return refusal_; }

 private:
  enum class State : std::uint8_t { kUntouched, kRegistered, kRefused };
  struct Range {
    std::span<std::byte> memory;
    std::uint64_t piece_bytes = 0;
    std::vector<State> pieces;
    std::uint32_t table_index = 0;  // Of its first piece.
  };

  bool register_piece(io_uring& ring, Range& range, std::size_t piece_index);

  std::vector<Range> ranges_;
  std::string refusal_;
  bool is_usable_ = false;
};

}  // namespace kvtier

#endif  // KVTIER_HAVE_LIBURING
