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
