// Leases. Guarded by the store's mutex.
#include "store/lease_table.h"

#include <algorithm>
#include <utility>

namespace kvtier::store {

std::uint64_t LeaseTable::add(Lease lease) {
  const std::vector<Item>& items = lease.items;
  if (leases_.size() >= kLeasesMax) return 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto tier = static_cast<std::size_t>(items[i].tier);
    if (life_.index().at(items[i].entry).num_leases[tier] == UINT16_MAX) {
      for (std::size_t k = 0; k < i; ++k) life_.unlease(items[k].entry, items[k].tier);
      return 0;
    }
    life_.lease(items[i].entry, items[i].tier);
  }
  const std::uint64_t lease_id = lease_id_next_++;
  // A copy: cut off in place it would keep all of its memory.
  lease.owner = std::string(lease.owner, 0, kOwnerBytesMax);
  by_expiry_.emplace(lease.expires_ns, lease_id);
  leases_.emplace(lease_id, std::move(lease));
  return lease_id;
}

bool LeaseTable::release(std::uint64_t lease_id) {
  const auto found = leases_.find(lease_id);
  if (found == leases_.end()) return false;
  const Lease ended = std::move(found->second);
  by_expiry_.erase({ended.expires_ns, lease_id});
  leases_.erase(found);
  for (const Item& item : ended.items) life_.unlease(item.entry, item.tier);
  return true;
}

TimeNs LeaseTable::expires_ns(std::uint64_t lease_id) const {
  const auto found = leases_.find(lease_id);
  return found == leases_.end() ? 0 : found->second.expires_ns;
}

void LeaseTable::expire(TimeNs now_ns) {
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now_ns) {
    release(by_expiry_.begin()->second);
  }
}

TimeNs LeaseTable::next_expiry_ns() const {
  return by_expiry_.empty() ? kNeverNs : by_expiry_.begin()->first;
}

void LeaseTable::release_all() {
  while (!leases_.empty()) release(leases_.begin()->first);
}

}  // namespace kvtier::store
