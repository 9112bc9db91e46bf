// PageLockedRanges: which host memory is page-locked for a device, and the locking of it in pieces.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "device/device.h"

namespace kvtier::transfer {

/// Who reaches some memory: nobody that needs it page-locked, copies, or kernels too.
enum class Reach : std::uint8_t { kNone, kCopies, kKernels };

/// The ranges at one moment: made when they change, so that a job has only to look. Constant.
struct PageLockedView {
  struct Range {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    const std::byte* last_end = nullptr;  // Of all the ranges up to this one, which may overlap.
    bool can_kernels_reach = false;
  };
  std::vector<Range> ranges;  // By begin.
  /// Where pieces begin and ranges end, in ascending order: no copy may go past one.
  std::vector<const std::byte*> borders;

  /// Who reaches all of the places, each of which, `length_bytes` of it, lies in one range.
  Reach reach_of(std::span<std::byte* const> begins, std::uint64_t length_bytes) const;
};

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
  /// Takes over memory that was locked for it in such pieces.
  void adopt(std::span<std::byte> memory, std::vector<std::span<std::byte>> pieces);
  /// Takes note of memory that somebody else locked.
  void add(std::span<std::byte> memory);
  /// Exactly what was locked or added, as often as it was; unknown memory is ignored.
  void remove(std::span<std::byte> memory);
  /// Forgets all and leaves it locked: the device may be using it.
  void abandon();

  /// Never null. Later changes make another one.
  std::shared_ptr<const PageLockedView> view() const;
  bool contains(std::byte* begin, std::uint64_t length_bytes, Reach reach = Reach::kCopies) const {
    return view()->reach_of({&begin, 1}, length_bytes) >= reach;
  }
  std::uint64_t num_bytes() const;

 private:
  using Pieces = std::vector<std::span<std::byte>>;
  struct Range {
    Pieces pieces;  // As given to the device; empty: somebody else locked it.
    bool can_kernels_reach = true;
    std::uint64_t num_uses = 0;
  };
  // A memory is its begin and its length: others may begin at the same place.
  using Place = std::pair<const std::byte*, std::uint64_t>;

  void unlock(const Pieces& pieces);
  // With mutex_ held: after each change of ranges_.
  void renew_view();

  Device& device_;
  const std::uint64_t piece_bytes_max_;
  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::map<Place, Range> ranges_;
  std::shared_ptr<const PageLockedView> view_ = std::make_shared<const PageLockedView>();
};

}  // namespace kvtier::transfer
