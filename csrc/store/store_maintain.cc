// clear, flush and stats of a store. Thread-safe.
#include <algorithm>

#include "store/store_impl.h"

namespace kvtier {

/// Removals count as durable when their table pages, and those that could bring back an older copy
/// of the same key, are written and synced, and files on their way out are gone.
Status Store::Impl::make_removals_durable(Locked& locked, TimeNs deadline_ns) {
  if (!disk_) return Status::ok();
  disk_->commits().hurry_stale_pages();
  const Status durable = commit_and_sync(locked, deadline_ns);
  if (!durable.is_ok()) return durable;
  // It tells that somebody used what is removed; close() writes one that does not.
  if (Status removed = remove_uses(locked, deadline_ns); !removed.is_ok()) return removed;
  const auto is_gone = [this] {
    return disk_->num_removals() == 0 || disk_->health() == Health::kOff || is_failed_;
  };
  if (!wait(locked, is_gone, deadline_ns)) {
    return Status(StatusCode::kTimeout, "the disk did not finish in time");
  }
  return disk_->has_leftovers() ? disk_->last_removal_failure() : Status::ok();
}

Status Store::Impl::commit_and_sync(Locked& locked, TimeNs deadline_ns) {
  store::CommitLog& commits = disk_->commits();
  const std::uint64_t change_mark = commits.change_mark();
  ++num_hurried_;
  ++num_syncing_;
  seams_.executor->wake();
  const auto is_off = [this] { return disk_->health() == Health::kOff || is_failed_; };
  bool is_done =
      wait(locked, [&] { return commits.is_written(change_mark) || is_off(); }, deadline_ns);
  const std::uint64_t write_mark = commits.write_mark();
  const std::uint64_t num_failures = commits.num_failures();
  const auto is_synced = [&] {
    return commits.is_synced(write_mark) || commits.num_failures() != num_failures || is_off();
  };
  is_done = is_done && wait(locked, is_synced, deadline_ns);
  --num_hurried_;
  --num_syncing_;
  if (is_off())
    return Status(StatusCode::kIoError, "the disk tier is off: " + disk_->health_reason());
  if (is_done && !commits.is_synced(write_mark)) return commits.last_failure();
  if (is_done) return Status::ok();
  if (commits.num_failures() != num_failures) return commits.last_failure();
  return Status(StatusCode::kTimeout, "the disk did not finish in time");
}

Result<Store::ClearResults> Store::Impl::clear(bool is_host, bool is_disk) {
  Locked locked(*this);
  if (Status open = check_open(); !open.is_ok()) return open;
  ClearResults results;
  if (is_failed_) return results;
  const TimeNs deadline_ns = seams_.clock->now_ns() + options_.default_timeout_ns;
  leases_.release_all();
  index_.for_each([this](EntryIndex entry) { life_.end_pins(entry); });
  if (is_host) drop_tier_copies(kHost, results.host);
  if (is_disk && disk_) {
    history_.forget_keys();
    writes_->drop_backlog();  // Queued puts do not come back.
    drop_tier_copies(kDisk, results.disk);
    changed();
    if (!disk_->is_readable()) {
      return Status(StatusCode::kIoError, "the disk tier is " + disk_->health_reason());
    }
    const std::uint64_t num_failures = disk_->num_removal_failures();
    Status durable = make_removals_durable(locked, deadline_ns);
    if (!durable.is_ok()) return durable;  // Gone from the index, so nothing of it is served.
    disk_->remove_empty_segments();
    seams_.executor->wake();
    const bool is_done =
        wait(locked, [this] { return disk_->num_segment_jobs() == 0; }, deadline_ns);
    if (!is_done) return Status(StatusCode::kTimeout, "the disk did not finish in time");
    if (disk_->num_removal_failures() != num_failures) return disk_->last_removal_failure();
  }
  changed();
  return results;
}

/// Takes every block's copy in one tier, and with it the blocks that would lose their footing.
void Store::Impl::drop_tier_copies(store::TierId tier, ClearResult& result) {
  std::vector<EntryIndex> entries;
  index_.for_each([&](EntryIndex entry) {
    if (index_.at(entry).tier_state(tier) != store::CopyState::kAbsent) entries.push_back(entry);
  });
  const store::TierId other = tier == kHost ? kDisk : kHost;
  store::TierSpace& space = tier == kHost ? host_space_ : disk_space_;
  const std::uint64_t num_leaving = life_.num_leaving();
  for (const EntryIndex entry : entries) {
    store::BlockEntry& block = index_.at(entry);
    const bool is_being_written = tier == kDisk && !block.is_detached &&
                                  block.tier_state(kDisk) == store::CopyState::kFilling;
    if (is_being_written && block.is_resident(kHost) && can_stand_without(entry, kDisk)) {
      block.is_disk_unwanted = true;  // It keeps its host copy.
      continue;
    }
    ++result.blocks;
    result.bytes += space.slots.slot_bytes(block.slot(tier));
    if (block.is_detached) continue;  // Went with an ancestor.
    if (block.pinned_tier() == tier) life_.end_pins(entry);
    const bool is_free = block.num_holds == 0 && block.is_resident(tier);
    if (is_free && block.is_resident(other) && can_stand_without(entry, tier)) {
      life_.drop_copy(entry, tier, store::SlotChange::kRemoved);
    } else {
      life_.remove_family(entry);
    }
  }
  result.pending_blocks += life_.num_leaving() - num_leaving;
}

/// Whether the block's other copy keeps the family rules: on disk its parent must be there too, and
/// in host alone its parent must be anywhere.
bool Store::Impl::can_stand_without(EntryIndex entry, store::TierId tier) const {
  const EntryIndex parent = index_.at(entry).parent;
  if (tier == kHost) return parent == kNoEntry || index_.at(parent).is_resident(kDisk);
  return parent == kNoEntry || index_.at(parent).is_resident(kHost);
}

Result<FlushResult> Store::Impl::flush(TimeNs timeout_ns) {
  Locked locked(*this);
  if (Status open = check_open(); !open.is_ok()) return open;
  FlushResult result;
  if (disk_ && !is_failed_) {
    const TimeNs deadline_ns = seams_.clock->now_ns() + timeout_ns;
    const std::uint64_t mark = writes_->mark();
    ++num_hurried_;
    seams_.executor->wake();
    const auto is_drained = [&] {
      return writes_->is_drained(mark) || is_failed_ || disk_->health() == Health::kOff ||
             (!disk_->is_writable(seams_.clock->now_ns()) && disk_->is_readable() &&
              writes_->num_in_flight() == 0 && !writes_->has_queued());
    };
    const bool is_done = wait(locked, is_drained, deadline_ns);
    --num_hurried_;
    if (!is_done) return Status(StatusCode::kTimeout, "the disk did not finish in time");
    Status durable = commit_and_sync(locked, deadline_ns);
    if (!durable.is_ok()) return durable;
    result.durable_blocks = disk_space_.stats.blocks;
  }
  if (disk_) result.not_kept_blocks = host_space_.stats.blocks - life_.num_in_both();
  return result;
}

StoreStats Store::Impl::stats() {
  Locked locked(*this);
  return is_open_ ? collect_stats() : stats_;
}

StoreStats Store::Impl::collect_stats() {
  leases_.expire(seams_.clock->now_ns());
  StoreStats stats = stats_;
  stats.miss_blocks = stats.get_blocks - stats.hit_blocks;
  stats.index_bytes = index_.num_bytes();
  stats.index_entries = index_.num_entries();
  stats.history_bytes = history_.num_bytes();
  stats.live_leases = leases_.num_live();
  fill_job_stats(stats.jobs);
  if (staging_) {
    stats.staging_bytes = staging_->capacity_bytes();
    stats.staging_bytes_used = staging_->used_bytes();
  }
  stats.host = host_space_.stats;
  stats.host.is_present = host_->is_present();
  stats.host.misses = stats.get_blocks - stats.host.hits;
  stats.host.bytes_capacity = host_->capacity_bytes();
  stats.host.bytes_used = host_space_.slots.used_bytes();
  stats.host.read_bytes_per_s = host_copies_.measured_bytes_per_s();
  stats.host.expected_read_bytes_per_s = host_copies_.expected_bytes_per_s();
  stats.host.health = is_failed_ ? Health::kOff : Health::kOk;
  stats.host.unserved_bytes = stats.host.hits == 0 ? stats.host.bytes_written : 0;
  stats.host.mode_io = "memory";
  stats.host.mode_direct = host_->arena()->info().is_huge_page_advised ? "huge-advised" : "small";
  stats.host.mode_note = host_->arena()->info().note;
  stats.host.mode_numa = numa_->text();
  if (disk_) fill_disk_stats(stats.disk);
  if (publisher_) {
    stats.live_updates = publisher_->num_updates();
    stats.live_failures = publisher_->num_failures();
  }
  return stats;
}

void Store::Impl::fill_disk_stats(TierStats& stats) {
  stats = disk_space_.stats;
  stats.is_present = true;
  stats.bytes_written += disk_->commits().written_bytes();
  stats.unserved_bytes = stats.hits == 0 ? stats.bytes_written : 0;
  stats.bytes_capacity = disk_->capacity_bytes();
  stats.bytes_used = disk_space_.slots.used_bytes() + disk_->table_bytes();
  stats.backlog_bytes = writes_->backlog_bytes();
  stats.backlog_bytes_max = writes_->backlog_bytes_max();
  stats.read_bytes_per_s = disk_->reads().measured_bytes_per_s();
  stats.expected_read_bytes_per_s = disk_->reads().expected_bytes_per_s();
  stats.health = is_failed_ ? Health::kOff : disk_->health();
  stats.health_reason = disk_->health_reason();
  const IoEngineInfo io = seams_.io_engine->info();
  stats.mode_io = io.name;
  stats.mode_io_note = seams_.io_note.empty() ? io.note : seams_.io_note;
  stats.mode_direct = direct_probe_.is_direct ? "direct" : "buffered";
  stats.mode_note = direct_probe_.reason;
}

}  // namespace kvtier
