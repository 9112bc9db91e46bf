// Staging buffers in order of arrival.
#include "store/staging_pool.h"

#include "tier_parts.h"

using namespace kvtier;
using namespace kvtier::testing;
using namespace kvtier::store;

TEST_CASE("G7: staging goes to the first in line, and nobody passes it") {
  StagingPool pool(std::move(Arena::create(64 << 10)).value());
  auto held = pool.reserve(0, 48 << 10);
  REQUIRE(held.has_value());
  const std::uint64_t first = pool.enter_line();
  const std::uint64_t second = pool.enter_line();
  CHECK_FALSE(pool.reserve(first, 32 << 10).has_value());
  // There would be room for less, but not before one's turn.
  CHECK_FALSE(pool.reserve(second, 4096).has_value());
  CHECK_FALSE(pool.reserve(0, 4096).has_value());
  pool.release(*held);
  auto large = pool.reserve(first, 32 << 10);
  REQUIRE(large.has_value());
  pool.leave_line(first);
  CHECK_FALSE(pool.reserve(first, 4096).has_value());
  auto small = pool.reserve(second, 4096);
  REQUIRE(small.has_value());
  pool.leave_line(second);
  CHECK(pool.reserve(0, 4096).has_value());
  CHECK(pool.used_bytes() == (32 << 10) + 2 * 4096);
}

TEST_CASE("a call alone holds three quarters of the staging, one of several a quarter") {
  StagingPool pool(std::move(Arena::create(64 << 10)).value());
  const std::uint64_t window_bytes = 16 << 10;
  // Whatever its size, and whoever else is there.
  auto other = pool.reserve(0, 48 << 10);
  REQUIRE(other.has_value());
  CHECK(pool.may_hold_more(0, 64 << 10));
  CHECK_FALSE(pool.may_hold_more(window_bytes, 4096));
  pool.release(*other);

  REQUIRE(pool.reserve(0, window_bytes).has_value());
  CHECK(pool.may_hold_more(window_bytes, window_bytes));
  // Of such blocks the next call could not get one beside three windows.
  CHECK_FALSE(pool.may_hold_more(window_bytes, window_bytes + 4096));
  REQUIRE(pool.reserve(0, window_bytes).has_value());
  CHECK(pool.may_hold_more(2 * window_bytes, window_bytes));
  REQUIRE(pool.reserve(0, window_bytes).has_value());
  CHECK_FALSE(pool.may_hold_more(3 * window_bytes, 4096));
}

TEST_CASE("a call holds half of a staging that nobody else uses much of") {
  StagingPool pool(std::move(Arena::create(64 << 10)).value());
  REQUIRE(pool.reserve(0, 16 << 10).has_value());
  const std::uint64_t own_bytes = 12 << 10;
  CHECK(pool.may_hold_more(own_bytes, 16 << 10));
  REQUIRE(pool.reserve(0, 16 << 10).has_value());
  CHECK_FALSE(pool.may_hold_more(own_bytes, 8 << 10));
}
