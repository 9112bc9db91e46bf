// Leases: their ends, their bound, released once.
#include "store/lease_table.h"

#include "tier_parts.h"

using namespace kvtier;
using namespace kvtier::testing;
using namespace kvtier::store;

TEST_CASE("leases end one by one at their times, and a released one only once") {
  TierParts parts;
  const ClassIndex small = parts.host.class_index_of({4096, 1});
  LeaseTable leases(parts.life);
  std::vector<LeaseTable::Item> items;
  for (std::uint64_t i = 0; i < 4; ++i) items.push_back({parts.put(small, i), TierId::kHost});
  const std::uint64_t first = leases.add({items, 100, 7, "first"});
  const std::uint64_t second = leases.add({{items[0]}, 50, 0, {}});
  const std::uint64_t third = leases.add({{items[3], items[3]}, 150, 0, {}});
  CHECK(first != second);
  CHECK(leases.next_expiry_ns() == 50);
  CHECK(leases.leases().begin()->second.owner == "first");
  CHECK(leases.leases().begin()->second.since_ns == 7);
  leases.expire(49);
  CHECK(leases.num_live() == 3);
  leases.expire(50);
  CHECK(leases.num_live() == 2);
  CHECK_FALSE(leases.release(second));
  CHECK_FALSE(parts.life.is_evictable(items[0].entry, TierId::kHost));
  CHECK(leases.release(first));
  CHECK_FALSE(leases.release(first));
  CHECK(parts.life.is_evictable(items[0].entry, TierId::kHost));
  CHECK_FALSE(parts.life.is_evictable(items[3].entry, TierId::kHost));
  CHECK(leases.expires_ns(third) == 150);
  leases.release_all();
  CHECK(leases.expires_ns(third) == 0);
  CHECK(leases.next_expiry_ns() == kNeverNs);
  CHECK(parts.host.stats.leased_bytes == 0);
  CHECK_FALSE(leases.release(0));
  CHECK_FALSE(leases.release(12345));
}

TEST_CASE("a block carries 65,535 leases and the next one protects nothing") {
  TierParts parts;
  const ClassIndex small = parts.host.class_index_of({4096, 1});
  LeaseTable leases(parts.life);
  const EntryIndex one = parts.put(small, 0);
  const EntryIndex other = parts.put(small, 1);
  for (int i = 0; i < 65'535; ++i) REQUIRE(leases.add({{{one, TierId::kHost}}, 100, 0, {}}) != 0);
  CHECK(leases.add({{{other, TierId::kHost}, {one, TierId::kHost}}, 100, 0, {}}) == 0);
  CHECK(parts.life.is_evictable(other, TierId::kHost));
  leases.expire(100);
  CHECK(leases.num_live() == 0);
  CHECK(parts.life.is_evictable(one, TierId::kHost));
}

TEST_CASE("an owner's name is kept as far as there is room for it") {
  TierParts parts;
  const EntryIndex entry = parts.put(parts.host.class_index_of({4096, 1}), 0);
  LeaseTable leases(parts.life);
  REQUIRE(leases.add({{{entry, TierId::kHost}}, 100, 0, std::string(1000, 'x')}) != 0);
  CHECK(leases.leases().begin()->second.owner == std::string(LeaseTable::kOwnerBytesMax, 'x'));
  CHECK(leases.leases().begin()->second.owner.capacity() <= 2 * LeaseTable::kOwnerBytesMax);
}
