// The order of S3-FIFO.
#include <doctest/doctest.h>

#include "store/eviction_policy.h"
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;
using namespace kvtier::store;

namespace {

struct Fixture {
  EntryIndex add(std::uint64_t number, EntryIndex parent = kNoEntry) {
    const EntryIndex entry = index.insert(0, key_of(number), parent);
    policy->insert(entry);
    policy->touch(entry);
    return entry;
  }
  void drop(EntryIndex entry) {
    policy->remove(entry);
    index.detach(entry);
    index.free(entry);
  }
  EntryIndex victim() {
    return policy->victim([this](EntryIndex entry) {
      return index.at(entry).num_holds == 0 && !index.at(entry).has_children();
    });
  }
  BlockIndex index{1000};
  std::unique_ptr<EvictionPolicy> policy = make_s3_fifo_policy(index, TierId::kDisk);
};

}  // namespace

TEST_CASE("newcomers go in the order they came; what was used twice since stays") {
  Fixture fixture;
  std::vector<EntryIndex> entries;
  for (std::uint64_t i = 0; i < 10; ++i) entries.push_back(fixture.add(i));
  fixture.policy->touch(entries[0]);
  fixture.policy->touch(entries[0]);
  for (std::size_t i = 1; i < 10; ++i) {
    REQUIRE(fixture.victim() == entries[i]);
    fixture.drop(entries[i]);
  }
  CHECK(fixture.victim() == entries[0]);
}

TEST_CASE("a block that comes back after it went outlives newcomers") {
  Fixture fixture;
  const EntryIndex first = fixture.add(1);
  for (std::uint64_t i = 2; i < 6; ++i) fixture.add(i);
  REQUIRE(fixture.victim() == first);
  fixture.drop(first);
  const EntryIndex again = fixture.add(1);
  for (std::uint64_t i = 2; i < 6; ++i) {
    const EntryIndex victim = fixture.victim();
    REQUIRE(victim != again);
    fixture.drop(victim);
  }
  CHECK(fixture.victim() == again);
}

TEST_CASE("leaves go before their parents, and a search ends when all are in use") {
  Fixture fixture;
  const EntryIndex root = fixture.add(1), leaf = fixture.add(2, root);
  CHECK(fixture.victim() == leaf);
  ++fixture.index.at(leaf).num_holds;
  CHECK(fixture.victim() == kNoEntry);
  --fixture.index.at(leaf).num_holds;
  fixture.drop(leaf);
  CHECK(fixture.victim() == root);
  fixture.drop(root);
  CHECK(fixture.victim() == kNoEntry);
  CHECK(fixture.policy->num_blocks() == 0);
}

TEST_CASE(
    "what an earlier process used three times outlives what it used less, and is counted so") {
  Fixture fixture;
  std::vector<EntryIndex> entries;
  for (std::uint64_t i = 0; i < 4; ++i) {
    const EntryIndex entry = fixture.index.insert(0, key_of(i), kNoEntry);
    fixture.index.at(entry).use.num_uses = static_cast<std::uint8_t>(4 - i);
    fixture.policy->insert_recovered(entry);
    entries.push_back(entry);
  }
  CHECK(fixture.policy->num_uses(entries[0]) == 3);
  CHECK(fixture.policy->num_uses(entries[1]) == 3);
  CHECK(fixture.policy->num_uses(entries[2]) == 2);
  CHECK(fixture.policy->num_uses(entries[3]) == 1);
  CHECK(fixture.policy->worth(entries[1]) > fixture.policy->worth(entries[2]));
  for (const std::size_t i : {2, 3, 0, 1}) {
    REQUIRE(fixture.victim() == entries[i]);
    fixture.drop(entries[i]);
  }
}
