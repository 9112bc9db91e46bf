// The order in which blocks go, against a plain list.
#include <doctest/doctest.h>

#include <algorithm>
#include <list>

#include "store/eviction_policy.h"
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;
using namespace kvtier::store;

namespace {

struct Fixture {
  Fixture() : index(1000), policy(make_lru_policy(index, TierId::kDisk)) {
    for (std::uint64_t i = 0; i < 200; ++i) entries.push_back(index.insert(0, key_of(i), kNoEntry));
  }
  BlockIndex index;
  std::unique_ptr<EvictionPolicy> policy;
  std::vector<EntryIndex> entries;
};

}  // namespace

TEST_CASE("the least recently used block goes first, as in a plain list") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Fixture fixture;
    std::list<EntryIndex> order;  // Oldest first.
    for (int step = 0; step < 5000; ++step) {
      const EntryIndex entry = fixture.entries[random.below(200)];
      const auto at = std::find(order.begin(), order.end(), entry);
      if (at == order.end()) {
        fixture.policy->insert(entry);
        order.push_back(entry);
      } else if (random.below(3) == 0) {
        fixture.policy->remove(entry);
        order.erase(at);
      } else {
        fixture.policy->touch(entry);
        order.splice(order.end(), order, at);
      }
      REQUIRE(fixture.policy->num_blocks() == order.size());
      const EntryIndex victim = fixture.policy->victim([](EntryIndex) { return true; });
      REQUIRE(victim == (order.empty() ? kNoEntry : order.front()));
    }
  }
}

TEST_CASE("a search for a victim looks at each block once and passes over what must stay") {
  Fixture fixture;
  for (const EntryIndex entry : fixture.entries) fixture.policy->insert(entry);
  std::size_t num_asked = 0;
  const auto none = [&](EntryIndex) {
    ++num_asked;
    return false;
  };
  CHECK(fixture.policy->victim(none) == kNoEntry);
  CHECK(num_asked == 200);
  const EntryIndex wanted = fixture.entries[120];
  CHECK(fixture.policy->victim([&](EntryIndex entry) { return entry == wanted; }) == wanted);
  CHECK(fixture.policy->num_blocks() == 200);
  fixture.policy->remove(wanted);
  CHECK(fixture.policy->victim([&](EntryIndex entry) { return entry == wanted; }) == kNoEntry);
}

TEST_CASE("a policy without blocks has no victim") {
  Fixture fixture;
  CHECK(fixture.policy->victim([](EntryIndex) { return true; }) == kNoEntry);
  fixture.policy->insert(fixture.entries[0]);
  fixture.policy->remove(fixture.entries[0]);
  CHECK(fixture.policy->victim([](EntryIndex) { return true; }) == kNoEntry);
  CHECK(fixture.policy->num_blocks() == 0);
}
