// HostMemoryLocker: page-locks host memory in the background, piece by piece, while transfers go
// on. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "transfer/page_locked_ranges.h"
#include "transfer/transfer_types.h"

namespace kvtier::transfer {

class HostMemoryLocker {
 public:
  /// The driver lets nobody else in while a piece is locked: about 50 ms for each GiB. Memory of
  /// more than kPiecesMax small pieces is cut into larger ones.
  static constexpr std::uint64_t kPieceBytesMin = 256ull << 20;
  static constexpr std::uint64_t kPieceBytesMax = 1ull << 30;
  static constexpr std::uint64_t kPiecesMax = 256;
  static constexpr std::size_t kMemoriesMax = 4096;

  /// `device` and `ranges` outlive the locker. Without a thread of its own it works in advance().
  HostMemoryLocker(Device& device, PageLockedRanges& ranges, bool has_thread,
                   std::uint64_t piece_bytes_max = kPieceBytesMax)
      : device_(device),
        ranges_(ranges),
        has_thread_(has_thread),
        piece_bytes_max_(piece_bytes_max) {}
  /// Requires: stop() answered true.
  ~HostMemoryLocker() = default;

  /// Queues memory. kBusy: it is known already; kExhausted: kMemoriesMax; kClosed; or why there is
  /// no thread.
  Status begin(std::span<std::byte> memory);
  HostMemoryInfo info(std::span<std::byte> memory) const;
  /// Forgets memory and unlocks what was locked of it so far; waits for the piece that is being
  /// locked. False: it had got as far as the ranges, or was never here.
  bool drop(std::span<std::byte> memory);
  /// Does a piece in this thread; whether there is more. For a locker without a thread.
  bool advance();
  /// Why memory was refused; empty: none was.
  std::string note() const;
  std::uint64_t pending_bytes() const;

  /// Begins nothing any more. Does not wait.
  void cancel();
  /// Cancels, waits for the piece that is being locked and unlocks what did not get ready. False:
  /// the driver had not let it go by `deadline_ns`. Idempotent.
  bool stop(Clock& clock, TimeNs deadline_ns);
  /// For one that stop() could not stop, and that is never destroyed: nobody will join its thread.
  void leave();

 private:
  struct Item {
    std::span<std::byte> memory;
    std::vector<std::span<std::byte>> pieces;
    std::uint64_t locked_bytes = 0;
    HostMemoryState state = HostMemoryState::kPending;
    Status refusal;
  };
  using Items = std::list<Item>;

  void run_thread();
  // With mutex_ held through `lock`, which is let go of meanwhile; whether there was a piece to do.
  bool lock_piece(std::unique_lock<std::mutex>& lock);
  // Returns the pieces that are to be unlocked again.
  std::vector<std::span<std::byte>> take_answer(Item& item, std::span<std::byte> piece,
                                                const Status& locked);
  Items::iterator find(std::span<std::byte> memory);
  Items::const_iterator find(std::span<std::byte> memory) const;
  Items::iterator find_pending();
  void unlock(const std::vector<std::span<std::byte>>& pieces);

  // Constant after construction.
  Device& device_;
  PageLockedRanges& ranges_;
  const bool has_thread_;
  const std::uint64_t piece_bytes_max_;
  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
  Items items_;
  const Item* locking_ = nullptr;  // Of which a piece is being locked, without the mutex.
  bool is_cancelled_ = false;
  bool has_left_ = true;  // There is no thread.
};

}  // namespace kvtier::transfer
