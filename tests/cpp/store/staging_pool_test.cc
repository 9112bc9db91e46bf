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
  CHECK(pool.window_bytes() == 16 << 10);
}
