// Loader: reads of blocks from disk into host slots or staging buffers, one I/O for all who wait
// for the same block. Guarded by the store's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>

#include "store/disk_tier.h"
#include "store/outcome.h"
#include "store/staging_pool.h"

namespace kvtier::store {

struct Load {
  enum class State : std::uint8_t {
    kReading,    // The device works on it.
    kRead,       // Bytes are there, nobody has checked them yet.
    kVerifying,  // One of the users checks them, outside the mutex.
    kReady,      // Good: users copy from `buffer`.
    kFailed,     // `outcome` says why.
  };

  EntryIndex entry = kNoEntry;
  std::span<std::byte> buffer;
  bool is_promotion = false;  // Into a host slot; else a staging buffer.
  bool is_prefetch = false;   // Nobody waited for it when it began.
  State state = State::kReading;
  Outcome outcome = Outcome::kMiss;
  std::uint32_t num_users = 0;
  bool is_reading_ended = false;
  TimeNs start_ns = 0;
};

class Loader {
 public:
  Loader(BlockLife& life, DiskTier& disk, disk::DiskEngine& engine, StagingPool& staging,
         Clock& clock)
      : life_(life), disk_(disk), engine_(engine), staging_(staging), clock_(clock) {}

  /// Joins the load of that block if one is under way; else nullptr.
  std::shared_ptr<Load> join(EntryIndex entry);
  /// Whether there is one to join.
  bool is_loading(EntryIndex entry) const { return by_entry_.contains(entry); }
  /// Starts one with the caller as its user. `buffer` is a host slot for which begin_fill was
  /// called
  /// (`is_promotion`), or a staging buffer. Requires: resident on disk, nothing to join.
  std::shared_ptr<Load> start(EntryIndex entry, std::span<std::byte> buffer, bool is_promotion);

  /// The same for a host slot that nobody waits for yet.
  std::shared_ptr<Load> start_prefetch(EntryIndex entry, std::span<std::byte> buffer);

  /// kRead -> kVerifying, by the user who will check.
  void begin_verify(Load& load);
  /// kVerifying -> kReady or kFailed. A bad block is removed with its descendants.
  void end_verify(Load& load, bool is_good);
  /// The user needs the buffer no more. What nobody uses is dropped when its read ends.
  void leave(const std::shared_ptr<Load>& load);

  /// True when the job was its own.
  bool finish(const disk::DiskResult& result, TimeNs now_ns);
  std::size_t num_reading() const { return reading_.size(); }
  std::size_t num_prefetch_reading() const { return num_prefetch_reading_; }
  /// The least that a read took lately, from its start to its end; 0 before the first.
  TimeNs least_read_ns() const { return least_read_ns_; }

 private:
  void fail(Load& load, Outcome outcome);
  void drop_if_unused(const std::shared_ptr<Load>& load);

  BlockLife& life_;
  DiskTier& disk_;
  disk::DiskEngine& engine_;
  StagingPool& staging_;
  Clock& clock_;
  TimeNs least_read_ns_ = 0;
  std::size_t num_prefetch_reading_ = 0;
  std::unordered_map<EntryIndex, std::shared_ptr<Load>> by_entry_;  // That can be joined.
  std::unordered_map<disk::DiskJobId, std::shared_ptr<Load>> reading_;
};

}  // namespace kvtier::store
