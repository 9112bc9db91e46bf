// Host to disk, parents first. Guarded by the store's mutex.
#include "store/write_behind.h"

#include <algorithm>

namespace kvtier::store {
namespace {

// Enough to keep a device busy, few enough that loads do not queue behind them: blocks, or as many
// more as the bytes of small ones need, so that neighbours are there to be joined and a fast device
// does not run dry meanwhile.
constexpr std::size_t kInFlightBlocks = 16;
constexpr std::uint64_t kInFlightBytesLeast = 16ull << 20;
constexpr std::uint64_t kInFlightBytesMax = 32ull << 20;
constexpr std::size_t kDeferredMax = 1u << 20;

}  // namespace

WriteBehind::WriteBehind(BlockLife& life, HostTier& host, DiskTier& disk, disk::DiskEngine& engine,
                         NamespaceRegistry& namespaces, AdmissionPolicy& admission,
                         std::uint64_t backlog_bytes_max)
    : life_(life),
      index_(life.index()),
      host_(host),
      disk_(disk),
      engine_(engine),
      namespaces_(namespaces),
      admission_(admission),
      backlog_bytes_max_(backlog_bytes_max) {}

bool WriteBehind::offer(EntryIndex entry, std::uint64_t request_hash, TimeNs now_ns) {
  TierStats& stats = life_.space(TierId::kDisk).stats;
  std::vector<EntryIndex> missing;
  for (EntryIndex at = entry; at != kNoEntry; at = index_.at(at).parent) {
    const BlockEntry& block = index_.at(at);
    if (block.tier_state(TierId::kDisk) != CopyState::kAbsent || block.is_queued) break;
    missing.push_back(at);
  }
  if (missing.empty()) return true;
  if (!namespaces_.at(index_.at(entry).namespace_index).disk_class) return false;
  const bool is_writable = disk_.is_writable(now_ns);
  for (auto at = missing.rbegin(); at != missing.rend(); ++at) {
    const BlockEntry& block = index_.at(*at);
    const bool is_known = block.is_deferred;
    // An ancestor that is still being filled is offered by its own call.
    if (!block.is_resident(TierId::kHost)) return false;
    if (is_writable && has_room(*at)) {
      if (enqueue(*at, request_hash, ++ticket_counter_)) continue;
      ++stats.declined;
      return false;
    }
    if (!is_known) ++stats.declined;
    defer(entry, ++ticket_counter_);
    return false;
  }
  return true;
}

bool WriteBehind::enqueue(EntryIndex entry, std::uint64_t request_hash, std::uint64_t ticket) {
  BlockEntry& block = index_.at(entry);
  // What is pinned shall outlive a restart, however seldom it was used.
  if (block.pin_count == 0 &&
      !is_admitted({block.namespace_index, block.key, request_hash, block.use}, block.parent)) {
    return false;
  }
  block.is_deferred = false;
  Item item;
  item.entry = entry;
  item.ticket = ticket;
  push(std::move(item));
  return true;
}

bool WriteBehind::is_admitted(const Candidate& candidate, EntryIndex parent) {
  const ClassIndex class_index = *namespaces_.at(candidate.namespace_index).disk_class;
  const AdmissionQuestion question{
      candidate.namespace_index,  candidate.key, candidate.request_hash,
      disk_.is_full(class_index), candidate.use, [&] { return disk_.victim_use(class_index); }};
  // Its parent is not what would go for it.
  if (parent != kNoEntry) life_.hold(parent);
  const bool is_taken = admission_.is_admitted(question);
  if (parent != kNoEntry) life_.unhold(parent);
  return is_taken;
}

bool WriteBehind::has_room(EntryIndex entry) const {
  return backlog_bytes_ == 0 || backlog_bytes_ + slot_bytes_of(entry) <= backlog_bytes_max_;
}

void WriteBehind::push(Item item) {
  life_.hold(item.entry);
  index_.at(item.entry).is_queued = true;
  backlog_bytes_ += slot_bytes_of(item.entry);
  open_tickets_.insert(item.ticket);
  queue_.push_back(std::move(item));
}

void WriteBehind::defer(EntryIndex entry, std::uint64_t ticket) {
  BlockEntry& block = index_.at(entry);
  if (block.is_deferred || deferred_.size() >= kDeferredMax) return;
  block.is_deferred = true;
  open_tickets_.insert(ticket);
  deferred_.push_back({entry, block.key, ticket});
}

void WriteBehind::offer_deferred(TimeNs now_ns) {
  if (!disk_.is_writable(now_ns)) return;
  while (!deferred_.empty() && backlog_bytes_ * 2 <= backlog_bytes_max_) {
    const Deferred deferred = deferred_.front();
    BlockEntry& block = index_.at(deferred.entry);
    const bool is_same = !block.is_detached && block.is_deferred && block.key == deferred.key;
    const bool is_needed = is_same && block.is_resident(TierId::kHost) && !block.is_queued &&
                           block.tier_state(TierId::kDisk) == CopyState::kAbsent;
    if (is_needed && !has_room(deferred.entry)) return;
    deferred_.pop_front();
    open_tickets_.erase(deferred.ticket);
    if (is_same) block.is_deferred = false;
    if (!is_needed) continue;
    const EntryIndex parent = block.parent;
    const bool has_parent = parent == kNoEntry || index_.at(parent).is_queued ||
                            index_.at(parent).tier_state(TierId::kDisk) != CopyState::kAbsent;
    if (has_parent) {
      enqueue(deferred.entry, 0, deferred.ticket);
    } else {
      offer(deferred.entry, 0, now_ns);
    }
  }
}

void WriteBehind::submit_direct(EntryIndex entry, std::span<std::byte> buffer, OnEnd on_end) {
  Item item;
  item.entry = entry;
  item.ticket = ++ticket_counter_;
  item.buffer = buffer;
  item.on_end = std::move(on_end);
  push(std::move(item));
}

void WriteBehind::rewrite(EntryIndex entry, std::span<std::byte> buffer, OnEnd on_end) {
  Item item;
  item.entry = entry;
  item.ticket = ++ticket_counter_;
  item.buffer = buffer;
  item.on_end = std::move(on_end);
  item.is_rewrite = true;
  push(std::move(item));
}

void WriteBehind::step(TimeNs now_ns) {
  end_detached();
  offer_deferred(now_ns);
  if (!disk_.is_writable(now_ns)) return decline_queue();
  while (!queue_.empty()) {
    // What waits for a parent counts: when that one fails it goes too, and took others' slots.
    const std::uint64_t unfinished_bytes = in_flight_bytes_ + waiting_bytes_;
    const bool has_blocks = num_unfinished() >= kInFlightBlocks;
    if (has_blocks && unfinished_bytes >= kInFlightBytesLeast) return;
    if (unfinished_bytes >= kInFlightBytesMax) return;
    bool is_waiting = false;
    const bool is_started = start(queue_.front(), is_waiting);
    if (is_waiting) return;
    Item item = std::move(queue_.front());  // A husk when it was started.
    queue_.pop_front();
    if (!is_started) decline(std::move(item));
  }
}

/// Nothing waits for a tier that does not write: host blocks become evictable again, and are
/// offered again when it does.
void WriteBehind::decline_queue() {
  while (!queue_.empty()) {
    Item item = std::move(queue_.front());
    queue_.pop_front();
    const EntryIndex entry = item.entry;
    const bool stays = !index_.at(entry).is_detached && index_.at(entry).is_resident(TierId::kHost);
    decline(std::move(item));
    if (stays) defer(entry, ++ticket_counter_);
  }
}

/// Blocks that were removed while they waited for their parents.
void WriteBehind::end_detached() {
  for (auto item = waiting_.begin(); item != waiting_.end();) {
    if (index_.at(item->first).is_detached) {
      Item ended = std::move(item->second);
      waiting_bytes_ -= slot_bytes_of(ended.entry);
      item = waiting_.erase(item);
      end(ended, Outcome::kDeclined);
    } else {
      ++item;
    }
  }
}

/// Reserves a slot and submits the write. False: it cannot be written. `is_waiting`: not yet.
bool WriteBehind::start(Item& item, bool& is_waiting) {
  BlockEntry& block = index_.at(item.entry);
  if (block.is_detached) return false;
  if (item.is_rewrite) {
    write(item);
    return true;
  }
  const bool has_parent =
      block.parent == kNoEntry ||
      index_.at(block.parent).tier_state(TierId::kDisk) == CopyState::kFilling ||
      index_.at(block.parent).is_resident(TierId::kDisk);
  if (!has_parent) return false;
  const ClassIndex class_index = *namespaces_.at(block.namespace_index).disk_class;
  // Asked once more, as what would go for it may be worth more by now than when it was queued.
  if (!is_admitted({block.namespace_index, block.key, 0, block.use}, block.parent)) return false;
  // Room must not be made by evicting the parent, of which this will be a child.
  if (block.parent != kNoEntry) life_.hold(block.parent);
  const DiskReservation reservation = disk_.reserve(class_index, item.entry);
  if (block.parent != kNoEntry) life_.unhold(block.parent);
  is_waiting = reservation.room == Room::kWait;
  if (reservation.room != Room::kSlot) return false;

  life_.begin_fill(item.entry, TierId::kDisk, reservation.slot);
  // Once for all attempts: children that start meanwhile must stay younger than their parent.
  block.disk_generation = disk_.next_generation();
  write(item);
  return true;
}

void WriteBehind::write(Item& item) {
  const BlockEntry& block = index_.at(item.entry);
  const SlotRef slot = block.slot(TierId::kDisk);
  const std::uint64_t slot_bytes = slot_bytes_of(item.entry);
  const std::span<std::byte> source =
      item.buffer.empty() ? host_.bytes(block.slot(TierId::kHost)) : item.buffer;
  const disk::DiskJobId job_id =
      engine_.write_block(disk_.segment_id(slot), slot.slot_index, source.subspan(0, slot_bytes));
  in_flight_bytes_ += slot_bytes;
  in_flight_.emplace(job_id, std::move(item));
}

bool WriteBehind::finish(const disk::DiskResult& result, TimeNs now_ns) {
  const auto found = in_flight_.find(result.job_id);
  if (found == in_flight_.end()) return false;
  Item item = std::move(found->second);
  in_flight_.erase(found);
  BlockEntry& block = index_.at(item.entry);
  const std::uint64_t slot_bytes = slot_bytes_of(item.entry);
  in_flight_bytes_ -= slot_bytes;
  if (result.status.is_ok()) {
    life_.space(TierId::kDisk).stats.bytes_written += slot_bytes;
    disk_.commits().note_write(block.slot(TierId::kDisk).segment_index);
    disk_.note_write_result(result.status, now_ns);
    if (item.is_rewrite) {
      block.is_recovered = false;
      end(item, Outcome::kDone);
    } else {
      complete(std::move(item));
    }
    return true;
  }
  const bool is_full = result.status.code() == StatusCode::kNoSpace;
  const bool is_retryable = is_full && !item.is_retried && !item.is_rewrite && !block.is_detached;
  if (is_retryable && retry(item)) return true;
  disk_.note_write_result(result.status, now_ns);
  if (item.is_rewrite) {
    end(item, Outcome::kFailed);  // It is no worse off than before.
    return true;
  }
  const bool is_cancelled = result.status.code() == StatusCode::kCancelled;
  fail(std::move(item),
       is_cancelled ? Outcome::kCancelled : (is_full ? Outcome::kDeclined : Outcome::kFailed));
  return true;
}

/// The slot had no space beneath it. One that was written before has: an evicted block's.
bool WriteBehind::retry(Item& item) {
  const ClassIndex class_index = *namespaces_.at(index_.at(item.entry).namespace_index).disk_class;
  const auto slot = disk_.replace_one(class_index, item.entry);
  if (!slot) return false;
  life_.move_fill(item.entry, TierId::kDisk, *slot);
  item.is_retried = true;
  write(item);
  return true;
}

/// The payload is written; the block counts as soon as its parent does.
void WriteBehind::complete(Item item) {
  BlockEntry& block = index_.at(item.entry);
  if (block.is_detached) return end(item, Outcome::kDeclined);
  if (block.is_disk_unwanted) return fail(std::move(item), Outcome::kDeclined);
  if (block.parent == kNoEntry || index_.at(block.parent).is_resident(TierId::kDisk)) {
    return apply(std::move(item));
  }
  if (index_.at(block.parent).tier_state(TierId::kDisk) != CopyState::kFilling) {
    return fail(std::move(item), Outcome::kDeclined);
  }
  block.is_write_done = true;
  const EntryIndex entry = item.entry;
  waiting_bytes_ += slot_bytes_of(entry);
  waiting_.emplace(entry, std::move(item));
}

void WriteBehind::apply(Item item) {
  // A loop, not recursion: a whole chain may have been waiting for its first block.
  std::vector<Item> ready;
  ready.push_back(std::move(item));
  while (!ready.empty()) {
    Item applied = std::move(ready.back());
    ready.pop_back();
    life_.finish_fill(applied.entry, TierId::kDisk);
    for (Item& child : take_waiting_children(applied.entry)) {
      if (index_.at(child.entry).is_disk_unwanted) {
        fail(std::move(child), Outcome::kDeclined);
      } else {
        ready.push_back(std::move(child));
      }
    }
    end(applied, Outcome::kDone);
  }
}

void WriteBehind::fail(Item item, Outcome outcome) {
  std::vector<Item> failed;
  failed.push_back(std::move(item));
  for (std::size_t i = 0; i < failed.size(); ++i) {
    std::vector<Item> children = take_waiting_children(failed[i].entry);
    for (Item& child : children) failed.push_back(std::move(child));
  }
  // Children first, so that no abort takes a waiting child away from under its item.
  for (auto each = failed.rbegin(); each != failed.rend(); ++each) {
    if (!index_.at(each->entry).is_detached) life_.abort_fill(each->entry, TierId::kDisk);
    ++life_.space(TierId::kDisk).stats.declined;
    end(*each, outcome);
  }
}

/// A queued block that will not be written now. With a host copy it stays there.
void WriteBehind::decline(Item item) {
  const BlockEntry& block = index_.at(item.entry);
  ++life_.space(TierId::kDisk).stats.declined;
  const bool has_copy = block.is_resident_anywhere();
  if (!block.is_detached && !has_copy) life_.remove_family(item.entry);
  end(item, Outcome::kDeclined);
}

void WriteBehind::end(Item& item, Outcome outcome) {
  BlockEntry& block = index_.at(item.entry);
  block.is_queued = false;
  block.is_write_done = false;
  backlog_bytes_ -= slot_bytes_of(item.entry);
  open_tickets_.erase(item.ticket);
  life_.unhold(item.entry);
  if (item.on_end) item.on_end(outcome);
}

std::vector<WriteBehind::Item> WriteBehind::take_waiting_children(EntryIndex parent) {
  std::vector<Item> taken;
  if (waiting_.empty()) return taken;
  EntryIndex child = index_.at(parent).first_child;
  for (; child != kNoEntry; child = index_.at(child).next_sibling) {
    const auto found = waiting_.find(child);
    if (found == waiting_.end()) continue;
    waiting_bytes_ -= slot_bytes_of(child);
    taken.push_back(std::move(found->second));
    waiting_.erase(found);
  }
  return taken;
}

std::size_t WriteBehind::drop_backlog() {
  std::size_t num_dropped = queue_.size();
  while (!queue_.empty()) {
    Item item = std::move(queue_.front());
    queue_.pop_front();
    decline(std::move(item));
  }
  for (const Deferred& deferred : deferred_) {
    BlockEntry& block = index_.at(deferred.entry);
    if (!block.is_detached && block.is_deferred && block.key == deferred.key) {
      block.is_deferred = false;
      ++num_dropped;
    }
    open_tickets_.erase(deferred.ticket);
  }
  deferred_.clear();
  return num_dropped;
}

std::uint64_t WriteBehind::slot_bytes_of(EntryIndex entry) const {
  return namespaces_.at(index_.at(entry).namespace_index).slot_bytes;
}

}  // namespace kvtier::store
