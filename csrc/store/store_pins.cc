// pin and unpin of a store. Thread-safe; does not wait.
#include "store/pin_limit.h"
#include "store/store_impl.h"

namespace kvtier {

Result<std::uint64_t> Store::Impl::pin(std::uint32_t namespace_index,
                                       std::span<const BlockKey> keys) {
  Locked locked(*this);
  if (Status open = check_open(); !open.is_ok()) return open;
  if (auto known = find_namespace(namespace_index); !known.is_ok()) return known.status();
  std::vector<EntryIndex> pinned;
  for (const auto& [entry, tier] : resolve(namespace_index, keys, true)) {
    if (tier == Tier::kNone || !has_room_for_pin(entry)) break;
    life_.pin(entry);
    pinned.push_back(entry);
  }
  // Only when all are pinned: admission then lets ancestors pass as well.
  const TimeNs now_ns = seams_.clock->now_ns();
  for (const EntryIndex entry : pinned) {
    if (writes_ && index_.at(entry).is_resident(kHost)) writes_->offer(entry, 0, now_ns);
  }
  changed();
  return std::uint64_t{pinned.size()};
}

/// Whether one pin more keeps the bounds, here and when the block gets to disk.
bool Store::Impl::has_room_for_pin(EntryIndex entry) const {
  const store::BlockEntry& block = index_.at(entry);
  if (block.pin_count == UINT16_MAX) return false;
  if (block.pin_count > 0) return true;
  const std::uint64_t host_bytes = host_space_.stats.pinned_bytes;
  const std::uint64_t disk_bytes = disk_space_.stats.pinned_bytes;
  const bool is_on_disk = block.is_resident(kDisk);
  const store::TierSpace& space = is_on_disk ? disk_space_ : host_space_;
  const std::uint64_t slot_bytes = space.slots.slot_bytes(block.slot(space.id));
  if (is_on_disk || namespaces_.at(block.namespace_index).disk_class) {
    // What is pinned in host is on its way to disk.
    const std::uint64_t bytes_max = store::pinned_bytes_max(disk_->capacity_bytes());
    if (disk_bytes + host_bytes + slot_bytes > bytes_max) return false;
  }
  if (is_on_disk) return true;
  return host_bytes + slot_bytes <= store::pinned_bytes_max(host_->capacity_bytes());
}

Result<std::uint64_t> Store::Impl::unpin(std::uint32_t namespace_index,
                                         std::span<const BlockKey> keys) {
  Locked locked(*this);
  if (Status open = check_open(); !open.is_ok()) return open;
  if (auto known = find_namespace(namespace_index); !known.is_ok()) return known.status();
  std::uint64_t num_unpinned = 0;
  // No block's pin may outlive its user because one before it is gone: nothing ends this early.
  for (const BlockKey& key : keys) {
    const EntryIndex entry = index_.find(namespace_index, key);
    if (entry == kNoEntry || index_.at(entry).pin_count == 0) continue;
    life_.unpin(entry);
    ++num_unpinned;
  }
  changed();
  return num_unpinned;
}

}  // namespace kvtier
