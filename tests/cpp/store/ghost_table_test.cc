// Which keys the ghosts remember, against a plain list.
#include "store/ghost_table.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "base/random.h"

using namespace kvtier;
using namespace kvtier::store;

TEST_CASE("the ghosts are the keys that came last, as in a plain list") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    GhostTable ghosts(16);
    std::deque<std::pair<std::uint32_t, std::uint32_t>> expected;
    for (std::uint32_t step = 0; step < 3000; ++step) {
      const auto tag = static_cast<std::uint32_t>(random.below(40));
      const auto is_tag = [tag](const auto& item) { return item.first == tag; };
      const auto known = std::find_if(expected.begin(), expected.end(), is_tag);
      const auto found = ghosts.find(tag);
      REQUIRE(found.has_value() == (known != expected.end()));
      if (found) CHECK(*found == known->second);
      if (!found) {
        ghosts.insert(tag, step);
        expected.emplace_back(tag, step);
        if (expected.size() > 16) expected.pop_front();
      }
    }
  }
}

TEST_CASE("a removed ghost is forgotten, and its place is used again") {
  GhostTable ghosts(2);
  ghosts.insert(1, 10);
  ghosts.remove(1);
  CHECK_FALSE(ghosts.find(1).has_value());
  ghosts.insert(2, 20);
  ghosts.insert(3, 30);
  CHECK(ghosts.find(2) == 20u);
  CHECK(ghosts.find(3) == 30u);
  ghosts.remove(7);
  CHECK(ghosts.find(3) == 30u);
}

TEST_CASE("a ghost costs at most 16 bytes") { CHECK(GhostTable(4096).num_bytes() <= 4096 * 16); }
