// LeaseTable: who protects which copies until when. Guarded by the store's mutex.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "store/block_life.h"

namespace kvtier::store {

class LeaseTable {
 public:
  static constexpr std::size_t kLeasesMax = 1'048'576;
  static constexpr TimeNs kTtlNsMax = 3600 * kNsPerS;
  /// Of an owner's name; what is beyond is cut off.
  static constexpr std::size_t kOwnerBytesMax = 64;

  struct Item {
    EntryIndex entry;
    TierId tier;
  };
  struct Lease {
    std::vector<Item> items;
    TimeNs expires_ns = 0;
    TimeNs since_ns = 0;
    std::string owner;
  };

  explicit LeaseTable(BlockLife& life) : life_(life) {}

  /// 0 when kLeasesMax are live, or an entry carries 65,535 of them: nothing is leased then.
  std::uint64_t add(Lease lease);
  /// False: unknown, expired or released before.
  bool release(std::uint64_t lease_id);
  /// 0: unknown.
  TimeNs expires_ns(std::uint64_t lease_id) const;
  /// Ends what is over; call before looking at anything that a lease may protect.
  void expire(TimeNs now_ns);
  /// When the next one ends; kNeverNs.
  TimeNs next_expiry_ns() const;
  void release_all();
  std::size_t num_live() const { return leases_.size(); }
  /// By id, which is by age: the oldest first.
  const std::map<std::uint64_t, Lease>& leases() const { return leases_; }

 private:
  BlockLife& life_;
  std::map<std::uint64_t, Lease> leases_;
  std::set<std::pair<TimeNs, std::uint64_t>> by_expiry_;
  std::uint64_t lease_id_next_ = 1;
};

}  // namespace kvtier::store
