// DiskTier: slots in segment files under a hard cap; creates, empties and removes segments, and
// keeps the tier's health. Guarded by the store's mutex.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "disk/disk_engine.h"
#include "disk/store_directory.h"
#include "store/block_life.h"
#include "store/commit_log.h"
#include "store/rate_meter.h"

namespace kvtier::store {

enum class Room : std::uint8_t {
  kSlot,  // Reserved.
  kWait,  // A segment is being made or emptied: ask again after the next result.
  kNone,  // Cannot be had now.
};

struct DiskReservation {
  Room room = Room::kNone;
  SlotRef slot;
};

struct DiskTierOptions {
  std::uint64_t cap_bytes = 0;
  std::uint64_t allowance_bytes = 0;  // Kept for files besides the segments.
  std::uint32_t alignment_bytes = 4096;
  TimeNs stall_ns = 2 * kNsPerS;
};

class DiskTier {
 public:
  using Log = std::function<void(const char* level, const std::string& text)>;

  DiskTier(BlockLife& life, TierSpace& space, disk::DiskEngine& engine, Clock& clock,
           const DiskTierOptions& options, Log log);

  CommitLog& commits() { return commits_; }
  RateMeter& reads() { return reads_; }
  const DiskTierOptions& options() const { return options_; }

  // Filled by recovery, before anything else.
  std::uint16_t adopt_existing_segment(const format::SegmentHeader& header,
                                       std::uint64_t allocated_bytes) {
    engine_.add_segment(header);
    return adopt_segment(header, allocated_bytes);
  }
  void set_store_id(const Digest128& store_id) { store_id_ = store_id; }
  void set_fixed_bytes(std::uint64_t fixed_bytes) { fixed_bytes_ = fixed_bytes; }
  std::uint64_t fixed_bytes() const { return fixed_bytes_; }
  /// A segment for blocks of the class in `room_bytes`; nothing where that is hardly worth a file.
  std::optional<format::SegmentHeader> plan_segment(ClassIndex class_index,
                                                    std::uint64_t room_bytes) const;
  void set_segment_id_next(std::uint32_t segment_id) { segment_id_next_ = segment_id; }
  void set_generation(std::uint64_t generation) { generation_ = generation; }
  std::uint64_t next_generation() { return ++generation_; }
  std::uint64_t generation() const { return generation_; }

  /// Whether a block of such a slot could ever be stored.
  std::uint64_t slot_bytes_max() const { return options_.cap_bytes / 4; }
  DiskReservation reserve(ClassIndex class_index, EntryIndex owner);
  /// Evicts the class's first victim; false when there is none.
  bool evict_one(ClassIndex class_index);
  /// Evicts the class's first victim and reserves just its slot.
  std::optional<SlotRef> replace_one(ClassIndex class_index, EntryIndex owner);
  /// True when admitting a block of the class would evict another.
  bool is_full(ClassIndex class_index) const;
  /// What is known of the block that would go for another of the class; nothing: none can.
  std::optional<BlockUse> victim_use(ClassIndex class_index);
  std::uint32_t segment_id(SlotRef slot) const {
    return static_cast<std::uint32_t>(space_.slots.segment(slot.segment_index).place);
  }
  /// Closes an emptied segment; its file goes as soon as no job of it runs.
  void leave(std::uint16_t segment_index);
  /// Forgets an empty segment whose file is gone. Before the store has threads.
  void forget_segment(std::uint16_t segment_index);
  /// Gives back all emptied segments' space (clear); their removal runs as jobs.
  void remove_empty_segments();
  std::size_t num_segment_jobs() const {
    return creating_.size() + removing_.size() + leaving_.size();
  }
  /// Files whose entries are forgotten here but may still lie on disk.
  std::size_t num_removals() const { return removing_.size() + leaving_.size(); }
  std::uint64_t num_removal_failures() const { return num_removal_failures_; }
  /// True when a file stayed whose entries the next open would take for blocks.
  bool has_leftovers() const { return has_leftovers_; }
  const Status& last_removal_failure() const { return last_removal_failure_; }

  /// Timers: stalls, re-probes, waiting removals. Returns when it wants to run again.
  TimeNs step(TimeNs now_ns);
  /// True when the job was the tier's own.
  bool finish(const disk::DiskResult& result);

  /// Feeds the circuit breaker.
  void note_write_result(const Status& status, TimeNs now_ns);
  void note_read_result(const Status& status, TimeNs now_ns);
  bool is_readable() const { return health_ != Health::kStalled && health_ != Health::kOff; }
  bool is_writable(TimeNs now_ns) const;
  Health health() const { return health_; }
  std::string health_reason() const { return health_reason_; }
  /// Off for good: the lock was lost, or an invariant broke.
  void turn_off(const std::string& reason);

  /// Less room for segments than this makes no tier.
  static constexpr std::uint64_t kRoomBytesMin = 256u << 10;
  std::uint64_t charged_bytes() const { return fixed_bytes_ + segment_bytes_; }
  std::uint64_t charged_bytes_of(std::uint16_t segment_index) const {
    return segments_.at(segment_index).charged_bytes;
  }
  const format::SegmentHeader& header_of(std::uint16_t segment_index) const {
    return segments_.at(segment_index).header;
  }
  std::uint64_t table_bytes() const;
  /// Largest payload that fits under the cap with today's fixed bytes, for `bytes_capacity`.
  std::uint64_t capacity_bytes() const;
  /// Drops all bookkeeping of segments: the directory is gone. Requires that no job is running.
  void forget_segments();

 private:
  struct Creation {
    ClassIndex class_index = 0;
    format::SegmentHeader header;
    std::uint64_t charged_bytes = 0;
  };
  struct SegmentInfo {
    format::SegmentHeader header;
    std::uint64_t charged_bytes = 0;
    bool is_leaving = false;  // Empty and closed; its file goes when its last job ends.
  };

  std::uint16_t adopt_segment(const format::SegmentHeader& header, std::uint64_t allocated_bytes);
  std::optional<format::SegmentHeader> plan_creation(ClassIndex class_index) const;
  bool start_creation(ClassIndex class_index);
  void finish_creation(const disk::DiskResult& result);
  EntryIndex find_victim(ClassIndex class_index);
  bool take_from_others(ClassIndex class_index, bool is_forced);
  bool is_family_protected(EntryIndex root) const;
  bool empty_segment(std::uint16_t segment_index);
  bool start_removal(std::uint16_t segment_index);
  void set_health(Health health, const std::string& reason);

  // Constant after construction.
  BlockLife& life_;
  TierSpace& space_;
  disk::DiskEngine& engine_;
  Clock& clock_;
  const DiskTierOptions options_;
  const Log log_;
  Digest128 store_id_;
  // Guarded by the store's mutex.
  CommitLog commits_;
  RateMeter reads_;
  std::unordered_map<std::uint16_t, SegmentInfo> segments_;
  std::unordered_map<disk::DiskJobId, Creation> creating_;
  struct Removal {
    std::uint32_t segment_id = 0;
    std::uint64_t charged_bytes = 0;
  };
  std::unordered_map<disk::DiskJobId, Removal> removing_;
  std::vector<std::uint16_t> leaving_;
  std::uint64_t fixed_bytes_ = 0;
  std::uint64_t segment_bytes_ = 0;  // Charged for segment files, those in the making included.
  std::uint32_t segment_id_next_ = 1;
  std::uint64_t generation_ = 0;
  std::uint64_t target_bytes_;      // Of the next segment; halved when the device is full.
  bool is_growth_blocked_ = false;  // The last creation failed, and not for want of space.
  TimeNs growth_retry_ns_ = 0;      // The device was full: no creation before.
  std::uint32_t num_evictions_ = 0;
  std::uint32_t num_write_failures_ = 0;  // Since writes last worked for a while.
  TimeNs write_failure_ns_ = 0;           // When the last of them came.
  std::uint32_t num_read_failures_ = 0;   // In a row.
  TimeNs write_retry_ns_ = 0;
  TimeNs read_retry_ns_ = 0;
  bool is_read_only_ = false;
  std::uint64_t num_removal_failures_ = 0;
  bool has_leftovers_ = false;  // A file that could be neither removed nor made void.
  Status last_removal_failure_;
  Health health_ = Health::kOk;
  std::string health_reason_;
};

/// Bytes that a segment file may allocate beyond its length: extent metadata of the file system.
std::uint64_t segment_charge_bytes(const format::SegmentHeader& header);

}  // namespace kvtier::store
