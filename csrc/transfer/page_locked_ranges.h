// PageLockedRanges: which host memory is page-locked for a device, and the locking of it in pieces.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "device/device.h"

namespace kvtier::transfer {

class PageLockedRanges {
 public:
  /// One registration of hundreds of GiB fails on some systems however much memory is free.
  static constexpr std::uint64_t kPieceBytesMax = 64ull << 30;

  /// `device` outlives the ranges. piece_bytes_max: smaller ones are for tests.
  explicit PageLockedRanges(Device& device, std::uint64_t piece_bytes_max = kPieceBytesMax)
      : device_(device), piece_bytes_max_(piece_bytes_max) {}
  /// Unlocks what it locked.
  ~PageLockedRanges();

  /// Locks all of it or, when a piece is refused, none.
  Status lock(std::span<std::byte> memory);
  /// Takes note of memory that somebody else locked.
  void add(std::span<std::byte> memory);
  /// Exactly what was locked or added; unknown memory is ignored.
  void remove(std::span<std::byte> memory);
  /// Forgets all and leaves it locked: the device may be using it.
  void abandon();

  /// Whether each of the places, `length_bytes` of it, lies in one range.
  bool contain_all(std::span<std::byte* const> begins, std::uint64_t length_bytes) const;
  bool contains(std::byte* begin, std::uint64_t length_bytes) const {
    return contain_all({&begin, 1}, length_bytes);
  }
  std::uint64_t num_bytes() const;

 private:
  struct Range {
    std::uint64_t length_bytes = 0;
    std::vector<std::byte*> pieces;  // As given to the device.
  };

  void unlock(const std::vector<std::byte*>& pieces);

  Device& device_;
  const std::uint64_t piece_bytes_max_;
  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::map<const std::byte*, Range> ranges_;  // By begin.
};

}  // namespace kvtier::transfer
