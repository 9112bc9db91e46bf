// Removing blocks of a store at somebody's wish: by key, by namespace, by place. Thread-safe.
#include <algorithm>
#include <utility>
#include <vector>

#include "store/store_impl.h"

namespace kvtier {

Result<std::uint64_t> Store::Impl::erase(std::uint32_t namespace_index,
                                         std::span<const BlockKey> keys) {
  Locked locked(*this);
  if (Status open = check_open(); !open.is_ok()) return open;
  if (auto known = find_namespace(namespace_index); !known.is_ok()) return known.status();
  if (is_failed_) return std::uint64_t{0};
  const TimeNs now_ns = seams_.clock->now_ns();
  leases_.expire(now_ns);
  std::uint64_t num_erased = 0;
  for (const BlockKey& key : keys) num_erased += erase_family(namespace_index, key);
  changed();
  if (disk_ && !keys.empty()) {
    // Also when nothing was found: an evicted block's old commit may still lie in its table.
    Status durable = make_removals_durable(locked, now_ns + options_.default_timeout_ns);
    if (!durable.is_ok()) return durable;
  }
  return num_erased;
}

/// Of what is leased, the block and its ancestors stay.
std::uint64_t Store::Impl::erase_family(std::uint32_t namespace_index, const BlockKey& key) {
  const EntryIndex root = index_.find(namespace_index, key);
  // What goes at somebody's wish leaves no trace: neither here nor in the next uses file.
  history_.forget(store::key_tag_of(namespace_index, key));
  if (root == kNoEntry) return 0;
  const auto members = index_.family(root);
  bool is_protected = false;
  for (const EntryIndex member : members) {
    const store::BlockEntry& block = index_.at(member);
    history_.forget(store::key_tag_of(namespace_index, block.key));
    is_protected |= block.num_leases[0] > 0 || block.num_leases[1] > 0;
  }
  // A leased descendant needs its ancestors; what hangs beside it may go.
  return is_protected ? erase_unprotected(members) : life_.remove_family(root);
}

Result<std::uint64_t> Store::Impl::erase_where(const EraseFilter& filter) {
  Locked locked(*this);
  if (Status open = check_open(); !open.is_ok()) return open;
  if (is_failed_) return std::uint64_t{0};
  const TimeNs deadline_ns = seams_.clock->now_ns() + options_.default_timeout_ns;
  leases_.expire(seams_.clock->now_ns());
  // By keys: a family goes at once, and entries are used again.
  std::vector<std::pair<std::uint32_t, BlockKey>> found;
  index_.for_each([&](EntryIndex entry) {
    const store::BlockEntry& block = index_.at(entry);
    if (is_meant(block, filter)) found.emplace_back(block.namespace_index, block.key);
  });
  std::uint64_t num_erased = 0;
  for (const auto& [namespace_index, key] : found) num_erased += erase_family(namespace_index, key);
  changed();
  if (!disk_) return num_erased;
  Status durable = make_removals_durable(locked, deadline_ns);
  if (!durable.is_ok()) return durable;
  disk_->remove_empty_segments();
  seams_.executor->wake();
  if (!wait(locked, [this] { return disk_->num_segment_jobs() == 0; }, deadline_ns)) {
    return Status(StatusCode::kTimeout, "the disk did not finish in time");
  }
  return num_erased;
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

/// Removes of a family what is neither leased nor an ancestor of something leased.
std::uint64_t Store::Impl::erase_unprotected(const std::vector<EntryIndex>& members) {
  std::uint64_t num_erased = 0;
  // Children come after their parents in `members`, so going backwards each parent is looked at
  // when its removable children are gone.
  for (auto member = members.rbegin(); member != members.rend(); ++member) {
    const store::BlockEntry& block = index_.at(*member);
    if (block.num_leases[0] > 0 || block.num_leases[1] > 0 || block.has_children()) continue;
    num_erased += life_.remove_family(*member);
  }
  return num_erased;
}

}  // namespace kvtier
