// Room in host memory: several sizes at once, starving sizes, moves with the right bytes.
#include "tier_parts.h"

using namespace kvtier;
using namespace kvtier::testing;
using namespace kvtier::store;

TEST_CASE("the oldest block of the size goes when host is full") {
  TierParts parts(1 << 20);
  const ClassIndex small = parts.host.class_index_of({64 << 10, 1});
  for (std::uint64_t number = 0; number < 20; ++number)
    REQUIRE(parts.put(small, number) != kNoEntry);
  for (std::uint64_t number = 0; number < 4; ++number) CHECK_FALSE(parts.is_there(number));
  for (std::uint64_t number = 4; number < 20; ++number) CHECK(parts.has_right_bytes(number));
  CHECK(parts.host.stats.evicted == 4);
  CHECK(parts.host.stats.blocks == 16);
}

TEST_CASE("a starving size is served by emptying the least valuable segment") {
  TierParts parts(4 << 20);
  const ClassIndex small = parts.host.class_index_of({64 << 10, 1});
  const ClassIndex large = parts.host.class_index_of({512 << 10, 1});
  for (std::uint64_t number = 0; number < 64; ++number) parts.put(small, number);
  // The first segment's blocks are used again: another one has the oldest now.
  for (std::uint64_t number = 0; number < 16; ++number) {
    const EntryIndex entry = parts.index.find(0, key_of(number));
    parts.life.touch_chain(std::span(&entry, 1));
  }
  CHECK(parts.put(large, 1000) != kNoEntry);
  CHECK(parts.has_right_bytes(1000));
  for (std::uint64_t number = 0; number < 16; ++number) CHECK(parts.has_right_bytes(number));
  std::size_t num_left = 0;
  for (std::uint64_t number = 16; number < 64; ++number) num_left += parts.is_there(number) ? 1 : 0;
  CHECK(num_left == 32);
  // The rest of the segment serves the new size without further loss.
  CHECK(parts.put(large, 1001) != kNoEntry);
  CHECK(parts.host.stats.evicted == 16);
}

TEST_CASE("leased blocks and parents move to other segments with their bytes") {
  TierParts parts(4 << 20);
  const ClassIndex small = parts.host.class_index_of({64 << 10, 1});
  const ClassIndex large = parts.host.class_index_of({1 << 20, 1});
  std::vector<EntryIndex> entries;
  for (std::uint64_t number = 0; number < 64; ++number) {
    // Of each four one is a parent of the next, one is leased.
    const bool is_child = number % 4 == 1;
    entries.push_back(parts.put(small, number, is_child ? entries.back() : kNoEntry));
    if (number % 4 == 2) parts.life.lease(entries.back(), TierId::kHost);
  }
  REQUIRE(parts.put(large, 1000) != kNoEntry);
  for (std::uint64_t number = 2; number < 64; number += 4) CHECK(parts.has_right_bytes(number));
  for (std::uint64_t number = 1; number < 64; number += 4) {
    if (parts.is_there(number)) {
      CHECK(parts.has_right_bytes(number));
      CHECK(parts.has_right_bytes(number - 1));  // Its parent.
    }
  }
  CHECK(parts.has_right_bytes(1000));
  CHECK(parts.host.stats.leased_bytes == 16 * (64 << 10));
}

TEST_CASE("blocks in use keep their place, and a tier of them alone has no room") {
  TierParts parts(1 << 20);
  const ClassIndex small = parts.host.class_index_of({64 << 10, 1});
  const ClassIndex other = parts.host.class_index_of({128 << 10, 1});
  std::vector<EntryIndex> entries;
  for (std::uint64_t number = 0; number < 16; ++number) {
    entries.push_back(parts.put(small, number));
    parts.life.hold(entries.back());
  }
  const SlotRef before = parts.index.at(entries[3]).slot(TierId::kHost);
  CHECK(parts.put(small, 100) == kNoEntry);
  CHECK(parts.put(other, 101) == kNoEntry);
  CHECK(parts.index.at(entries[3]).slot(TierId::kHost).slot_index == before.slot_index);
  for (const EntryIndex entry : entries) parts.life.unhold(entry);
  CHECK(parts.put(other, 101) != kNoEntry);
  CHECK(parts.has_right_bytes(101));
}

TEST_CASE("random sizes, leases and moves never mix bytes up and always add up") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    TierParts parts(3 << 20);
    std::vector<ClassIndex> classes;
    for (const std::uint64_t slot_bytes : {512, 4096, 20'480, 204'800, 700'416}) {
      classes.push_back(parts.host.class_index_of({slot_bytes, 1}));
    }
    std::vector<EntryIndex> leased;
    std::vector<std::uint64_t> numbers;
    for (std::uint64_t step = 0; step < 3000; ++step) {
      if (parts.put(classes[random.below(classes.size())], step) != kNoEntry)
        numbers.push_back(step);
      const EntryIndex entry = parts.index.find(0, key_of(step));
      if (entry != kNoEntry && random.below(10) == 0) {
        parts.life.lease(entry, TierId::kHost);
        leased.push_back(entry);
      }
      if (leased.size() > 20) {
        parts.life.unlease(leased.front(), TierId::kHost);
        leased.erase(leased.begin());
      }
      if (step % 100 != 0) continue;
      for (const std::uint64_t number : numbers) {
        if (parts.is_there(number)) REQUIRE(parts.has_right_bytes(number));
      }
    }
    for (const EntryIndex entry : leased) parts.life.unlease(entry, TierId::kHost);
    CHECK(parts.host.stats.leased_bytes == 0);
    CHECK(parts.host.stats.blocks == parts.index.num_entries());
    CHECK(parts.host.slots.used_bytes() <= 3 << 20);
  }
}
