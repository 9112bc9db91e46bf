// The index against a plain map, its bound, and what it takes per block.
#include "store/block_index.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;
using namespace kvtier::store;

TEST_CASE("the index agrees with a map through random inserts, detaches and families") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    BlockIndex index(2000);
    struct Known {
      EntryIndex entry;
      std::uint64_t parent;  // A number; UINT64_MAX: a root.
    };
    std::map<std::pair<std::uint32_t, std::uint64_t>, Known> known;
    std::map<std::uint64_t, std::set<std::uint64_t>> children;
    for (int step = 0; step < 20'000; ++step) {
      const auto space = static_cast<std::uint32_t>(random.below(3));
      const std::uint64_t number = random.below(900) * 3 + space;
      const auto at = known.find({space, number});
      REQUIRE(index.find(space, key_of(number)) ==
              (at == known.end() ? kNoEntry : at->second.entry));
      if (at == known.end()) {
        const std::uint64_t parent = random.below(900) * 3 + space;
        const auto above = known.find({space, parent});
        const bool has_parent = above != known.end() && random.below(2) == 0;
        const EntryIndex entry =
            index.insert(space, key_of(number), has_parent ? above->second.entry : kNoEntry);
        if (known.size() == 2000) {
          REQUIRE(entry == kNoEntry);
          continue;
        }
        REQUIRE(entry != kNoEntry);
        known[{space, number}] = {entry, has_parent ? parent : UINT64_MAX};
        if (has_parent) children[parent].insert(number);
        index.set_checksums(entry, std::vector<std::uint64_t>(1 + number % 4, number));
      } else if (children[number].empty()) {
        const Known gone = at->second;
        REQUIRE(index.family(gone.entry) == std::vector<EntryIndex>{gone.entry});
        index.detach(gone.entry);
        REQUIRE(index.find(space, key_of(number)) == kNoEntry);
        index.free(gone.entry);
        if (gone.parent != UINT64_MAX) children[gone.parent].erase(number);
        known.erase(at);
      } else {
        REQUIRE(index.family(at->second.entry).size() > children[number].size());
        const std::vector<std::uint64_t> checksums(1 + number % 4, number);
        REQUIRE(index.has_checksums(at->second.entry, checksums));
        REQUIRE_FALSE(index.has_checksums(at->second.entry, std::vector<std::uint64_t>(7, number)));
      }
      REQUIRE(index.num_entries() == known.size());
      if (step % 100 != 0) continue;
      // Runs of neighbours, strangers and repetitions, of more than one group.
      std::vector<BlockKey> keys;
      std::vector<EntryIndex> expected;
      std::uint64_t wanted = number;
      for (int i = 0; i < 150; ++i) {
        wanted = random.below(4) == 0 ? random.below(3000) : wanted + 3;
        const auto stored = known.find({space, wanted});
        keys.push_back(key_of(wanted));
        expected.push_back(stored == known.end() ? kNoEntry : stored->second.entry);
      }
      std::vector<EntryIndex> found(keys.size());
      index.find_all(space, keys, found);
      REQUIRE(found == expected);
    }
    std::size_t num_visited = 0;
    index.for_each([&](EntryIndex) { ++num_visited; });
    CHECK(num_visited == known.size());
  }
}

TEST_CASE("a full index refuses and takes again what was given back") {
  BlockIndex index(100);
  std::vector<EntryIndex> entries;
  for (std::uint64_t number = 0; number < 100; ++number) {
    entries.push_back(index.insert(0, key_of(number), kNoEntry));
    REQUIRE(entries.back() != kNoEntry);
  }
  CHECK(index.insert(0, key_of(1000), kNoEntry) == kNoEntry);
  CHECK(index.num_entries() == 100);
  index.detach(entries[50]);
  CHECK(index.insert(0, key_of(1000), kNoEntry) == kNoEntry);  // Not before it is free.
  index.free(entries[50]);
  CHECK(index.insert(0, key_of(1000), kNoEntry) == entries[50]);
  CHECK(index.find(0, key_of(50)) == kNoEntry);
}

TEST_CASE("a family lists parents before children, however deep") {
  BlockIndex index(200'000);
  EntryIndex root = index.insert(0, key_of(0), kNoEntry);
  EntryIndex parent = root;
  for (std::uint64_t number = 1; number < 100'000; ++number) {
    parent = index.insert(0, key_of(number), parent);
  }
  const auto family = index.family(root);
  REQUIRE(family.size() == 100'000);
  std::set<EntryIndex> seen;
  for (const EntryIndex member : family) {
    const EntryIndex above = index.at(member).parent;
    REQUIRE((member == root || seen.contains(above)));
    seen.insert(member);
  }
}

TEST_CASE("a million blocks take at most 128 bytes each, buckets included") {
  BlockIndex index(1u << 20);
  for (std::uint64_t number = 0; number < 1'000'000; ++number) {
    REQUIRE(index.insert(0, key_of(number), kNoEntry) != kNoEntry);
  }
  CHECK(index.num_bytes() <= 128 * 1'000'000ull);
  CHECK(index.find(0, key_of(999'999)) != kNoEntry);
  CHECK(index.find(1, key_of(999'999)) == kNoEntry);
}

TEST_CASE("keys that share their first half or their hash are told apart") {
  BlockIndex index(10'000);
  std::vector<BlockKey> keys;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    BlockKey key;
    std::memcpy(key.bytes.data() + 8, &i, 8);  // All in one bucket.
    keys.push_back(key);
    REQUIRE(index.insert(0, key, kNoEntry) != kNoEntry);
  }
  for (std::size_t i = 0; i < keys.size(); ++i)
    REQUIRE(index.at(index.find(0, keys[i])).key == keys[i]);
}

TEST_CASE("a chain that lies in a row is found whole, and not beyond what left it") {
  BlockIndex index(1000);
  std::vector<BlockKey> keys;
  for (std::uint64_t number = 0; number < 300; ++number) {
    keys.push_back(key_of(number));
    (void)index.insert(7, keys.back(), kNoEntry);
  }
  std::vector<EntryIndex> found(keys.size());
  index.find_all(7, keys, found);
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == i);
  // Its memory still holds the key.
  index.detach(100);
  index.find_all(7, keys, found);
  CHECK(found[99] == 99);
  CHECK(found[100] == kNoEntry);
  CHECK(found[101] == 101);
  index.find_all(8, keys, found);
  CHECK(std::count(found.begin(), found.end(), kNoEntry) == 300);
}
