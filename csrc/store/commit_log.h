// CommitLog: brings slot tables on disk up to date with the index, in batches, and knows what is
// written and what is durable. Guarded by the store's mutex.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "disk/disk_engine.h"
#include "store/block_index.h"
#include "store/tier_space.h"

namespace kvtier::store {

class CommitLog {
 public:
  CommitLog(BlockIndex& index, TierSpace& space, disk::DiskEngine& engine)
      : index_(index), space_(space), engine_(engine) {}

  void add_segment(std::uint16_t segment_index, const format::SegmentHeader& header);
  void remove_segment(std::uint16_t segment_index);

  /// The block of a slot changed; its table entry has to follow.
  void note_change(SlotRef slot, SlotChange change);
  /// The file of that segment goes as a whole: its table stays as it is until then.
  void abandon_segment(std::uint16_t segment_index);
  /// A payload write of that segment completed.
  void note_write(std::uint16_t segment_index);
  /// Entries of blocks evicted earlier must go too, before a deletion may count as durable: they
  /// could bring back an old copy of a deleted key.
  void hurry_stale_pages();

  /// A mark for everything noted so far.
  std::uint64_t change_mark() const { return change_counter_; }
  std::uint64_t write_mark() const { return write_counter_; }
  /// Whether the table pages of everything up to the mark have been written.
  bool is_written(std::uint64_t change_mark) const;
  /// Whether everything written up to the mark survives power loss.
  bool is_synced(std::uint64_t write_mark) const;

  /// Submits what is due: page writes when a batch is full, old or `is_hurried`; syncs when
  /// `is_sync_wanted`. Returns when it wants to run again.
  TimeNs step(TimeNs now_ns, bool is_hurried, bool is_sync_wanted);
  /// True when the job was the log's own.
  bool finish(const disk::DiskResult& result, TimeNs now_ns);

  bool has_work() const { return !urgent_.empty() || !writing_.empty() || !syncing_.empty(); }
  bool is_busy(std::uint16_t segment_index) const;
  std::uint64_t num_failures() const { return num_failures_; }
  const Status& last_failure() const { return last_failure_; }
  std::uint64_t written_bytes() const { return written_bytes_; }
  void forget();  // Everything: the directory is gone. Requires that no job is running.

  /// Payload bytes of a block of the namespace. Set once, before the first change.
  std::function<std::uint32_t(std::uint32_t namespace_index)> length_bytes_of;

 private:
  struct PageRef {
    std::uint16_t segment_index = 0;
    std::uint64_t page_index = 0;
    friend auto operator<=>(const PageRef&, const PageRef&) = default;
  };
  struct Run {
    PageRef first;
    std::uint64_t num_pages = 0;
    std::vector<std::uint64_t> marks;
  };
  struct SegmentState {
    format::SegmentHeader header;
    std::set<std::uint64_t> stale_pages;
    std::uint64_t first_unsynced =
        0;  // Mark of the oldest write that no finished sync covers; 0: none.
    std::uint64_t first_syncing = 0;  // The same for the sync that is running.
    bool is_syncing = false;
    bool is_abandoned = false;
  };

  void mark_urgent(PageRef page);
  void drop_urgent(std::uint16_t segment_index);
  void submit_pages(TimeNs now_ns);
  Run take_run();
  std::vector<std::byte> encode_run(const Run& run) const;
  void encode_slot(const SegmentState& segment, SlotRef slot, std::span<std::byte> target) const;
  bool is_writing(PageRef page) const;
  void submit_syncs();
  void note_failure(const Status& status, TimeNs now_ns);

  BlockIndex& index_;
  TierSpace& space_;
  disk::DiskEngine& engine_;
  std::unordered_map<std::uint16_t, SegmentState> segments_;
  std::map<PageRef, std::uint64_t> urgent_;  // Page -> mark of its oldest change.
  std::set<std::uint64_t> open_marks_;       // Of urgent pages and of pages being written.
  std::unordered_map<disk::DiskJobId, Run> writing_;
  std::set<PageRef> writing_pages_;
  std::unordered_map<disk::DiskJobId, std::uint16_t> syncing_;
  std::uint64_t change_counter_ = 0;
  std::uint64_t write_counter_ = 0;
  std::uint64_t num_pending_changes_ = 0;  // Since pages were last submitted.
  TimeNs oldest_change_ns_ = kNeverNs;     // When step() first saw the oldest urgent change.
  TimeNs retry_ns_ = 0;                    // After a failure: not before.
  std::uint64_t num_failures_ = 0;
  std::uint64_t written_bytes_ = 0;
  Status last_failure_;
};

}  // namespace kvtier::store
