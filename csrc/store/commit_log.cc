// Slot tables in batches. Guarded by the store's mutex.
#include "store/commit_log.h"

#include <algorithm>

#include "format/slot_table.h"

namespace kvtier::store {
namespace {

constexpr std::uint64_t kPageBytes = format::kTablePageBytes;
// A batch is written when it is this large or this old: one page of commits at a time for streams
// of small blocks, and a bounded loss when the process is killed without flush.
constexpr std::uint64_t kBatchChanges = 64;
constexpr TimeNs kBatchAgeNs = 50 * kNsPerMs;
constexpr std::size_t kRunsMax = 16;        // Page writes under way.
constexpr std::uint64_t kRunPagesMax = 64;  // 256 KiB: larger writes gain nothing.
constexpr TimeNs kRetryPauseNs = kNsPerS;

}  // namespace

void CommitLog::add_segment(std::uint16_t segment_index, const format::SegmentHeader& header) {
  SegmentState added;
  added.header = header;
  const bool is_new = segments_.emplace(segment_index, std::move(added)).second;
  KVTIER_CHECK(is_new);
}

void CommitLog::remove_segment(std::uint16_t segment_index) {
  KVTIER_CHECK(!is_busy(segment_index));
  drop_urgent(segment_index);
  segments_.erase(segment_index);
}

void CommitLog::drop_urgent(std::uint16_t segment_index) {
  const auto begin = urgent_.lower_bound(PageRef{segment_index, 0});
  auto end = begin;
  for (; end != urgent_.end() && end->first.segment_index == segment_index; ++end) {
    open_marks_.erase(end->second);
  }
  urgent_.erase(begin, end);
}

void CommitLog::abandon_segment(std::uint16_t segment_index) {
  KVTIER_CHECK(!is_busy(segment_index));
  drop_urgent(segment_index);
  SegmentState& segment = segments_.at(segment_index);
  segment.stale_pages.clear();
  segment.is_abandoned = true;
}

void CommitLog::note_change(SlotRef slot, SlotChange change) {
  SegmentState& segment = segments_.at(slot.segment_index);
  if (segment.is_abandoned) return;
  const std::uint64_t first = segment.header.entry_offset_bytes(slot.slot_index) / kPageBytes;
  const std::uint64_t num_pages = (segment.header.entry_bytes() + kPageBytes - 1) / kPageBytes;
  for (std::uint64_t page = first; page < first + num_pages; ++page) {
    if (change == SlotChange::kEvicted) {
      segment.stale_pages.insert(page);
    } else {
      mark_urgent({slot.segment_index, page});
    }
  }
  if (change != SlotChange::kEvicted) ++num_pending_changes_;
}

void CommitLog::note_write(std::uint16_t segment_index) {
  const auto found = segments_.find(segment_index);
  if (found == segments_.end()) return;
  ++write_counter_;
  if (found->second.first_unsynced == 0) found->second.first_unsynced = write_counter_;
}

void CommitLog::hurry_stale_pages() {
  for (auto& [segment_index, segment] : segments_) {
    for (const std::uint64_t page : segment.stale_pages) mark_urgent({segment_index, page});
  }
}

bool CommitLog::is_written(std::uint64_t change_mark) const {
  return open_marks_.empty() || *open_marks_.begin() > change_mark;
}

bool CommitLog::is_synced(std::uint64_t write_mark) const {
  return std::all_of(segments_.begin(), segments_.end(), [write_mark](const auto& item) {
    const SegmentState& segment = item.second;
    const bool is_covered = segment.first_unsynced == 0 || segment.first_unsynced > write_mark;
    return is_covered && (segment.first_syncing == 0 || segment.first_syncing > write_mark);
  });
}

TimeNs CommitLog::step(TimeNs now_ns, bool is_hurried, bool is_sync_wanted) {
  if (now_ns < retry_ns_) return retry_ns_;
  TimeNs next_ns = kNeverNs;
  if (urgent_.empty()) {
    oldest_change_ns_ = kNeverNs;
  } else {
    oldest_change_ns_ = std::min(oldest_change_ns_, now_ns);
    const TimeNs due_ns = oldest_change_ns_ + kBatchAgeNs;
    if (is_hurried || num_pending_changes_ >= kBatchChanges || now_ns >= due_ns) {
      submit_pages(now_ns);
    } else {
      next_ns = due_ns;
    }
  }
  if (is_sync_wanted) submit_syncs();
  return next_ns;
}

bool CommitLog::finish(const disk::DiskResult& result, TimeNs now_ns) {
  if (const auto sync = syncing_.find(result.job_id); sync != syncing_.end()) {
    SegmentState& segment = segments_.at(sync->second);
    segment.is_syncing = false;
    if (!result.status.is_ok()) {
      segment.first_unsynced =
          segment.first_syncing;  // The older of the two: not covered after all.
      note_failure(result.status, now_ns);
    }
    segment.first_syncing = 0;
    syncing_.erase(sync);
    return true;
  }
  const auto found = writing_.find(result.job_id);
  if (found == writing_.end()) return false;
  const Run run = std::move(found->second);
  writing_.erase(found);
  for (std::uint64_t i = 0; i < run.num_pages; ++i) {
    const PageRef page{run.first.segment_index, run.first.page_index + i};
    writing_pages_.erase(page);
    open_marks_.erase(run.marks[i]);
    if (!result.status.is_ok()) {
      const auto [urgent, is_new] = urgent_.emplace(page, run.marks[i]);
      if (!is_new) {
        open_marks_.erase(urgent->second);
        urgent->second = run.marks[i];
      }
      open_marks_.insert(run.marks[i]);
    }
  }
  if (result.status.is_ok()) {
    written_bytes_ += run.num_pages * kPageBytes;
    note_write(run.first.segment_index);
  } else {
    note_failure(result.status, now_ns);
  }
  return true;
}

bool CommitLog::is_busy(std::uint16_t segment_index) const {
  const auto found = segments_.find(segment_index);
  if (found != segments_.end() && found->second.is_syncing) return true;
  const auto page = writing_pages_.lower_bound(PageRef{segment_index, 0});
  return page != writing_pages_.end() && page->segment_index == segment_index;
}

void CommitLog::forget() {
  KVTIER_CHECK(writing_.empty());
  KVTIER_CHECK(syncing_.empty());
  segments_.clear();
  urgent_.clear();
  open_marks_.clear();
  num_pending_changes_ = 0;
}

void CommitLog::mark_urgent(PageRef page) {
  const auto [found, is_new] = urgent_.emplace(page, change_counter_ + 1);
  // A page that is urgent already keeps its older mark; marks later than it are then covered too.
  if (is_new) open_marks_.insert(++change_counter_);
}

void CommitLog::submit_pages(TimeNs now_ns) {
  while (writing_.size() < kRunsMax) {
    Run run = take_run();
    if (run.num_pages == 0) break;
    const std::vector<std::byte> pages = encode_run(run);
    const std::uint32_t segment_id = segments_.at(run.first.segment_index).header.segment_id;
    const disk::DiskJobId job_id =
        engine_.write_table_pages(segment_id, run.first.page_index, pages);
    for (std::uint64_t i = 0; i < run.num_pages; ++i) {
      writing_pages_.insert({run.first.segment_index, run.first.page_index + i});
    }
    writing_.emplace(job_id, std::move(run));
  }
  num_pending_changes_ = 0;
  oldest_change_ns_ = urgent_.empty() ? kNeverNs : now_ns;
}

/// The next neighbouring urgent pages of which none is being written; no pages: nothing to do now.
CommitLog::Run CommitLog::take_run() {
  Run run;
  for (auto page = urgent_.begin(); page != urgent_.end();) {
    const bool is_next = run.num_pages > 0 &&
                         page->first.segment_index == run.first.segment_index &&
                         page->first.page_index == run.first.page_index + run.num_pages;
    if (run.num_pages > 0 && (!is_next || run.num_pages == kRunPagesMax)) break;
    if (is_writing(page->first)) {
      if (run.num_pages > 0) break;
      ++page;
      continue;
    }
    if (run.num_pages == 0) run.first = page->first;
    ++run.num_pages;
    run.marks.push_back(page->second);
    segments_.at(page->first.segment_index).stale_pages.erase(page->first.page_index);
    page = urgent_.erase(page);
  }
  return run;
}

std::vector<std::byte> CommitLog::encode_run(const Run& run) const {
  std::vector<std::byte> bytes(run.num_pages * kPageBytes);
  const SegmentState& segment = segments_.at(run.first.segment_index);
  const std::uint64_t entry_bytes = segment.header.entry_bytes();
  const std::uint64_t begin = run.first.page_index * kPageBytes;
  const std::uint64_t end = begin + bytes.size();
  // Entries of several pages are encoded whole and cut to the run.
  const std::uint64_t pages_per_entry = (entry_bytes + kPageBytes - 1) / kPageBytes;
  std::vector<std::byte> entry(entry_bytes);
  std::uint64_t slot = pages_per_entry > 1 ? run.first.page_index / pages_per_entry
                                           : run.first.page_index * (kPageBytes / entry_bytes);
  for (; slot < segment.header.num_slots; ++slot) {
    const auto slot_index = static_cast<std::uint32_t>(slot);
    const std::uint64_t at = segment.header.entry_offset_bytes(slot_index);
    if (at >= end) break;
    encode_slot(segment, SlotRef{slot_index, run.first.segment_index}, entry);
    const std::uint64_t from = std::max(at, begin);
    const std::uint64_t to = std::min(at + entry_bytes, end);
    if (from >= to) continue;
    std::copy(entry.begin() + static_cast<std::ptrdiff_t>(from - at),
              entry.begin() + static_cast<std::ptrdiff_t>(to - at),
              bytes.begin() + static_cast<std::ptrdiff_t>(from - begin));
  }
  return bytes;
}

void CommitLog::encode_slot(const SegmentState& segment, SlotRef slot,
                            std::span<std::byte> target) const {
  const EntryIndex owner = space_.slots.owner(slot);
  const bool is_committed = owner != kNoEntry && !index_.at(owner).is_detached &&
                            index_.at(owner).is_resident(TierId::kDisk);
  if (!is_committed) {
    format::encode_slot_entry(nullptr, target);
    return;
  }
  const BlockEntry& block = index_.at(owner);
  format::SlotEntry entry;
  entry.key = block.key;
  entry.is_root = block.parent == kNoEntry;
  if (!entry.is_root) entry.parent = index_.at(block.parent).key;
  entry.namespace_index = block.namespace_index;
  entry.length_bytes = length_bytes_of(block.namespace_index);
  entry.generation = block.disk_generation;
  entry.pin_count = block.pin_count;
  const auto checksums = index_.checksums(owner, segment.header.num_parts);
  entry.checksums.assign(checksums.begin(), checksums.end());
  format::encode_slot_entry(&entry, target);
}

bool CommitLog::is_writing(PageRef page) const { return writing_pages_.contains(page); }

void CommitLog::submit_syncs() {
  for (auto& [segment_index, segment] : segments_) {
    if (segment.is_syncing || segment.first_unsynced == 0) continue;
    segment.is_syncing = true;
    segment.first_syncing = std::exchange(segment.first_unsynced, 0);
    syncing_.emplace(engine_.sync_segment(segment.header.segment_id), segment_index);
  }
}

void CommitLog::note_failure(const Status& status, TimeNs now_ns) {
  ++num_failures_;
  last_failure_ = status;
  retry_ns_ = now_ns + kRetryPauseNs;
}

}  // namespace kvtier::store
