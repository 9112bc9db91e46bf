// Removing blocks of a store at somebody's wish: by key, by namespace, by place. Thread-safe.
#include <algorithm>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/store_impl.h"

namespace kvtier {
namespace {

// Removed in one turn; then others get at the store.
constexpr std::size_t kTurnBlocks = 4096;

}  // namespace

Result<std::uint64_t> Store::Impl::erase(std::uint32_t namespace_index,
                                         std::span<const BlockKey> keys) {
  Locked locked(*this);
  if (Status open = check_open(); !open.is_ok()) return open;
  if (auto known = find_namespace(namespace_index); !known.is_ok()) return known.status();
  if (is_failed_) return std::uint64_t{0};
  const TimeNs now_ns = seams_.clock->now_ns();
  leases_.expire(now_ns);
  EntrySet meant;
  for (const BlockKey& key : keys) {
    // What goes at somebody's wish leaves no trace: neither here nor in the next uses file.
    history_.forget(store::key_tag_of(namespace_index, key));
    const EntryIndex entry = index_.find(namespace_index, key);
    if (entry != kNoEntry) meant.insert(entry);
  }
  const TimeNs deadline_ns = now_ns + options_.default_timeout_ns;
  auto erased = erase_entries(meant, locked, deadline_ns);
  changed();
  if (erased.is_ok() && disk_ && !keys.empty()) {
    // Also when nothing was found: an evicted block's old commit may still lie in its table.
    Status durable = make_removals_durable(locked, deadline_ns);
    if (!durable.is_ok()) return durable;
  }
  return erased;
}

Result<std::uint64_t> Store::Impl::erase_where(const EraseFilter& filter) {
  Locked locked(*this);
  if (Status open = check_open(); !open.is_ok()) return open;
  if (is_failed_) return std::uint64_t{0};
  const TimeNs now_ns = seams_.clock->now_ns();
  const TimeNs deadline_ns = now_ns + options_.default_timeout_ns;
  leases_.expire(now_ns);
  EntrySet meant;
  index_.for_each([&](EntryIndex entry) {
    if (is_meant(index_.at(entry), filter)) meant.insert(entry);
  });
  auto erased = erase_entries(meant, locked, deadline_ns);
  changed();
  if (!erased.is_ok() || !disk_) return erased;
  Status durable = make_removals_durable(locked, deadline_ns);
  if (!durable.is_ok()) return durable;
  disk_->remove_empty_segments();
  seams_.executor->wake();
  const auto are_gone = [this] {
    return disk_->num_removals() == 0 || disk_->health() == Health::kOff || is_failed_;
  };
  if (!wait(locked, are_gone, deadline_ns)) {
    return Status(StatusCode::kTimeout, "the blocks are erased, their space comes back later");
  }
  return erased;
}

bool Store::Impl::is_meant(const store::BlockEntry& block, const EraseFilter& filter) const {
  if (block.is_detached) return false;
  if (filter.namespace_id && namespaces_.at(block.namespace_index).id != *filter.namespace_id) {
    return false;
  }
  if (filter.segment_ids.empty()) return true;
  if (!disk_ || !block.is_resident(kDisk)) return false;
  const std::uint32_t segment_id = disk_->segment_id(block.slot(kDisk));
  return std::find(filter.segment_ids.begin(), filter.segment_ids.end(), segment_id) !=
         filter.segment_ids.end();
}

/// Removes what is meant and what continues it, but nothing that is leased, nor its ancestors. Each
/// block is looked at once, however long its chain is, and others get at the store between turns.
Result<std::uint64_t> Store::Impl::erase_entries(const EntrySet& meant, Locked& locked,
                                                 TimeNs deadline_ns) {
  // By keys: entries are used again while others have their turn. Parents come before children.
  std::vector<std::pair<std::uint32_t, BlockKey>> families;
  for (const EntryIndex top : find_tops(meant)) {
    for (const EntryIndex member : index_.family(top)) {
      families.emplace_back(index_.at(member).namespace_index, index_.at(member).key);
    }
  }
  std::uint64_t num_erased = 0;
  std::size_t num_seen = 0;
  for (auto it = families.rbegin(); it != families.rend(); ++it) {
    if (++num_seen % kTurnBlocks == 0) {
      locked.lock().unlock();
      std::this_thread::yield();
      locked.lock().lock();
      if (Status open = check_open(); !open.is_ok()) return open;
      if (seams_.clock->now_ns() >= deadline_ns) {
        return Status(StatusCode::kTimeout, "not all blocks were erased in time: num_erased=" +
                                                std::to_string(num_erased) +
                                                " of=" + std::to_string(families.size()));
      }
    }
    const auto& [namespace_index, key] = *it;
    const EntryIndex entry = index_.find(namespace_index, key);
    if (entry == kNoEntry) continue;
    const store::BlockEntry& block = index_.at(entry);
    if (block.num_leases[0] > 0 || block.num_leases[1] > 0 || block.has_children()) continue;
    history_.forget(store::key_tag_of(namespace_index, key));
    num_erased += life_.remove_family(entry);
  }
  return num_erased;
}

/// Those of `meant` that continue no other of them.
std::vector<store::EntryIndex> Store::Impl::find_tops(const EntrySet& meant) const {
  std::unordered_map<EntryIndex, bool> is_below;  // Of ancestors that are not meant themselves.
  std::vector<EntryIndex> tops;
  std::vector<EntryIndex> passed;
  for (const EntryIndex entry : meant) {
    passed.clear();
    bool is_found = false;
    for (EntryIndex up = index_.at(entry).parent; up != kNoEntry; up = index_.at(up).parent) {
      if (meant.contains(up)) {
        is_found = true;
        break;
      }
      if (const auto known = is_below.find(up); known != is_below.end()) {
        is_found = known->second;
        break;
      }
      passed.push_back(up);
    }
    for (const EntryIndex up : passed) is_below[up] = is_found;
    if (!is_found) tops.push_back(entry);
  }
  return tops;
}

}  // namespace kvtier
