// The seeded generator: the same numbers for ever, in range, and spread out.
#include "base/random.h"

#include <doctest/doctest.h>

#include <set>

namespace kvtier {
namespace {

TEST_CASE("a seed gives the same numbers on every machine") {
  // The published first outputs of splitmix64 for seed 1234567.
  Random random(1234567);
  CHECK(random.next() == 6457827717110365317ull);
  CHECK(random.next() == 3203168211198807973ull);
  CHECK(random.next() == 9817491932198370423ull);
}

TEST_CASE("numbers stay in their range and reach its ends") {
  Random random(1);
  std::set<std::uint64_t> seen;
  for (int index = 0; index < 1000; ++index) {
    seen.insert(random.between(3, 7));
    CHECK(random.below(10) < 10);
    const double unit = random.unit();
    CHECK(unit >= 0);
    CHECK(unit < 1);
  }
  CHECK(seen == std::set<std::uint64_t>{3, 4, 5, 6, 7});
  CHECK(random.between(9, 9) == 9);
}

TEST_CASE("a probability of zero draws nothing and of one always hits") {
  Random random(5);
  Random other(5);
  CHECK_FALSE(random.is_hit(0));
  CHECK(random.next() == other.next());
  int num_hits = 0;
  for (int index = 0; index < 10'000; ++index) {
    CHECK(random.is_hit(1));
    if (random.is_hit(0.25)) ++num_hits;
  }
  CHECK(num_hits > 2200);
  CHECK(num_hits < 2800);
}

}  // namespace
}  // namespace kvtier
