// The transitions of a block and the rules of families.
#include <set>

#include "tier_parts.h"

using namespace kvtier;
using namespace kvtier::testing;
using namespace kvtier::store;

TEST_CASE("only the transitions of the life of a copy are legal") {
  using enum CopyState;
  const std::set<std::pair<CopyState, CopyState>> legal = {
      {kAbsent, kFilling}, {kFilling, kResident}, {kResident, kLeaving}, {kFilling, kLeaving},
      {kFilling, kAbsent}, {kResident, kAbsent},  {kLeaving, kAbsent}};
  for (const CopyState from : {kAbsent, kFilling, kResident, kLeaving}) {
    for (const CopyState to : {kAbsent, kFilling, kResident, kLeaving}) {
      CHECK(is_legal_transition(from, to) == legal.contains({from, to}));
    }
  }
}

TEST_CASE("a parent without a disk copy stays in host while it has children") {
  TierParts parts;
  const ClassIndex small = parts.host.class_index_of({4096, 1});
  const EntryIndex root = parts.put(small, 0);
  const EntryIndex child = parts.put(small, 1, root);
  CHECK_FALSE(parts.life.is_evictable(root, TierId::kHost));
  CHECK(parts.life.is_evictable(child, TierId::kHost));
  parts.put_on_disk(root);
  CHECK(parts.life.is_evictable(root, TierId::kHost));
  // On disk it may go only while it is in host, and not below a child that is there too.
  CHECK(parts.life.is_evictable(root, TierId::kDisk));
  parts.put_on_disk(child);
  CHECK_FALSE(parts.life.is_evictable(root, TierId::kDisk));
  parts.life.evict(root, TierId::kHost);
  parts.life.evict(child, TierId::kHost);
  parts.life.evict(child, TierId::kDisk);
  CHECK_FALSE(parts.is_there(1));
  CHECK(parts.life.is_evictable(root, TierId::kDisk));
  parts.life.evict(root, TierId::kDisk);
  CHECK(parts.index.num_entries() == 0);
  CHECK(parts.host.slots.used_bytes() == 0);
  CHECK(parts.disk.slots.used_bytes() == 0);
}

TEST_CASE("a removed family is gone for lookups at once and its busy slots follow") {
  TierParts parts;
  const ClassIndex small = parts.host.class_index_of({4096, 1});
  const EntryIndex root = parts.put(small, 0);
  const EntryIndex child = parts.put(small, 1, root);
  parts.put_on_disk(root);
  parts.life.hold(child);
  parts.life.lease(root, TierId::kHost);
  CHECK(parts.life.remove_family(root) == 2);
  CHECK_FALSE(parts.is_there(0));
  CHECK_FALSE(parts.is_there(1));
  CHECK(parts.life.num_leaving() == 2);
  CHECK(parts.host.slots.used_bytes() == 2 * 4096);
  // The same keys can be stored anew meanwhile.
  CHECK(parts.put(small, 0) != kNoEntry);
  parts.life.unhold(child);
  CHECK(parts.life.num_leaving() == 1);
  parts.life.unlease(root, TierId::kHost);
  CHECK(parts.life.num_leaving() == 0);
  CHECK(parts.host.slots.used_bytes() == 4096);
  CHECK(parts.disk.slots.used_bytes() == 0);
  CHECK(parts.changes.back().second == SlotChange::kRemoved);
}

TEST_CASE("a fill that fails takes the block and what hangs on it") {
  TierParts parts;
  const ClassIndex small = parts.host.class_index_of({4096, 1});
  const EntryIndex root = parts.index.insert(0, key_of(0), kNoEntry);
  parts.life.begin_fill(root, TierId::kHost, *parts.host_tier.reserve(small, root));
  const EntryIndex child = parts.index.insert(0, key_of(1), root);
  parts.life.begin_fill(child, TierId::kHost, *parts.host_tier.reserve(small, child));
  parts.life.hold(child);
  parts.life.abort_fill(root, TierId::kHost);
  CHECK(parts.index.num_entries() == 0);
  CHECK(bool{parts.index.at(child).is_detached});
  parts.life.unhold(child);
  CHECK(parts.host.slots.used_bytes() == 0);
}

TEST_CASE("uses of a chain make its root the youngest and its leaf the first to go") {
  TierParts parts;
  const ClassIndex small = parts.host.class_index_of({4096, 1});
  std::vector<EntryIndex> chain;
  for (std::uint64_t i = 0; i < 5; ++i) {
    chain.push_back(parts.put(small, i, chain.empty() ? kNoEntry : chain.back()));
  }
  const EntryIndex other = parts.put(small, 100);
  parts.life.touch_chain(std::span(chain).subspan(3));
  const auto any = [](EntryIndex) { return true; };
  EvictionPolicy& policy = parts.host.policy(small);
  CHECK(policy.victim(any) == other);
  policy.remove(other);
  for (std::size_t i = 5; i-- > 0;) {
    CHECK(policy.victim(any) == chain[i]);
    policy.remove(chain[i]);
  }
  for (const EntryIndex entry : chain) policy.insert(entry);
  policy.insert(other);
}
