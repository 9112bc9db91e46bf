// The clock: conversions at their limits, and time that does not go back.
#include "base/clock.h"

#include <doctest/doctest.h>

#include <limits>

namespace kvtier {
namespace {

TEST_CASE("seconds become nanoseconds and stay within the clock's range") {
  CHECK(ns_from_s(0) == 0);
  CHECK(ns_from_s(1.5) == 1'500'000'000);
  CHECK(ns_from_s(-3) == 0);
  CHECK(ns_from_s(std::numeric_limits<double>::quiet_NaN()) == 0);
  CHECK(ns_from_s(std::numeric_limits<double>::infinity()) == kNeverNs);
  CHECK(ns_from_s(1e300) == kNeverNs);
}

TEST_CASE("the system's clock does not go back") {
  SystemClock clock;
  TimeNs before_ns = clock.now_ns();
  for (int index = 0; index < 1000; ++index) {
    const TimeNs now_ns = clock.now_ns();
    CHECK(now_ns >= before_ns);
    before_ns = now_ns;
  }
}

}  // namespace
}  // namespace kvtier
