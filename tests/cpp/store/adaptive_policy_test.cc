// The adaptive order and its admission.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "store/admission_policy.h"
#include "store/eviction_policy.h"
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;
using namespace kvtier::store;

namespace {

constexpr TierId kTier = TierId::kDisk;

struct Fixture {
  EntryIndex add(std::uint64_t number, EntryIndex parent = kNoEntry) {
    const EntryIndex entry = index.insert(0, key_of(number), parent);
    use(entry, ++request);
    index.at(entry).set_state(kTier, CopyState::kFilling);
    index.at(entry).set_state(kTier, CopyState::kResident);
    policy->insert(entry);
    return entry;
  }
  void use(EntryIndex entry, std::uint64_t by_request) {
    ChainUse chain[] = {{key_tag_of(0, index.at(entry).key), {}}};
    history.note(chain, 0, by_request);
    index.at(entry).use = chain[0].use;
  }
  void drop(EntryIndex entry) {
    policy->remove(entry);
    index.at(entry).set_state(kTier, CopyState::kAbsent);
    index.detach(entry);
    index.free(entry);
  }
  EntryIndex victim() {
    return policy->victim([this](EntryIndex entry) {
      return index.at(entry).num_holds == 0 && !index.at(entry).has_children();
    });
  }

  BlockIndex index{100'000};
  ReuseHistory history;
  std::unique_ptr<EvictionPolicy> policy = make_adaptive_policy(index, kTier, history);
  std::uint64_t request = 0;
};

}  // namespace

TEST_CASE("before anything is learned the oldest first use goes first, what was used again last") {
  Fixture fixture;
  std::vector<EntryIndex> entries;
  for (std::uint64_t i = 0; i < 20; ++i) entries.push_back(fixture.add(i));
  fixture.use(entries[0], 1000);
  fixture.policy->touch(entries[0]);
  for (std::size_t i = 1; i < 20; ++i) {
    REQUIRE(fixture.victim() == entries[i]);
    fixture.drop(entries[i]);
  }
  CHECK(fixture.victim() == entries[0]);
}

TEST_CASE("a leaf goes before what is above it, and its parent can go next") {
  Fixture fixture;
  EntryIndex above = kNoEntry;
  std::vector<EntryIndex> chain;
  for (std::uint64_t i = 0; i < 10; ++i) chain.push_back(above = fixture.add(i, above));
  while (!chain.empty()) {
    REQUIRE(fixture.victim() == chain.back());
    fixture.drop(chain.back());
    chain.pop_back();
  }
  CHECK(fixture.victim() == kNoEntry);
}

TEST_CASE("what could not go when its turn came can go once nothing protects it any more") {
  Fixture fixture;
  const EntryIndex held = fixture.add(1), free = fixture.add(2);
  ++fixture.index.at(held).num_holds;
  CHECK(fixture.victim() == free);
  ++fixture.index.at(free).num_holds;
  CHECK(fixture.victim() == kNoEntry);
  --fixture.index.at(held).num_holds;
  CHECK(fixture.victim() == held);
  fixture.drop(held);
  CHECK(fixture.victim() == kNoEntry);
  CHECK(fixture.policy->num_blocks() == 1);
}

TEST_CASE("every search ends with a block that may go, whatever is protected meanwhile") {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Fixture fixture;
    std::vector<EntryIndex> entries;
    std::uint64_t number = 0;
    for (int step = 0; step < 20'000; ++step) {
      const std::uint64_t kind = random.below(10);
      if (entries.size() < 50 || kind < 3) {
        const bool is_child = !entries.empty() && random.below(2) == 0;
        entries.push_back(
            fixture.add(number++, is_child ? entries[random.below(entries.size())] : kNoEntry));
      } else if (kind < 6) {
        const EntryIndex used = entries[random.below(entries.size())];
        fixture.use(used, ++fixture.request);
        fixture.policy->touch(used);
      } else if (kind < 8) {
        std::uint32_t& holds = fixture.index.at(entries[random.below(entries.size())]).num_holds;
        holds = 1 - holds;
      } else {
        const EntryIndex victim = fixture.victim();
        std::set<EntryIndex> free;
        for (const EntryIndex entry : entries) {
          const BlockEntry& block = fixture.index.at(entry);
          if (block.num_holds == 0 && !block.has_children()) free.insert(entry);
        }
        REQUIRE((victim == kNoEntry ? free.empty() : free.contains(victim)));
        if (victim == kNoEntry) continue;
        fixture.drop(victim);
        entries.erase(std::find(entries.begin(), entries.end(), victim));
      }
      REQUIRE(fixture.policy->num_blocks() == entries.size());
    }
  }
}

TEST_CASE("a full tier takes a second use, and no first one before such have shown their worth") {
  ReuseHistory history;
  const auto admission = make_adaptive_admission(history);
  AdmissionQuestion question;
  question.is_tier_full = true;
  const BlockUse victim{0, use_class_of(1, {1, false}, false), 1};
  question.find_victim_use = [victim] { return std::optional(victim); };
  question.use = BlockUse{0, use_class_of(1, {1, false}, false), 1};
  CHECK_FALSE(admission->is_admitted(question));
  question.use = BlockUse{0, use_class_of(2, {0, true}, false), 2};
  CHECK(admission->is_admitted(question));
  question.use.num_uses = 1;
  question.is_tier_full = false;
  CHECK(admission->is_admitted(question));
}
