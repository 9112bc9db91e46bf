// Rates over busy time, on a clock that the test moves.
#include "store/rate_meter.h"

#include <doctest/doctest.h>

#include "testing/sim_world.h"

using namespace kvtier;
using namespace kvtier::store;
using kvtier::testing::SimClock;

namespace {

constexpr std::uint64_t kMb = 1'000'000;

void move(RateMeter& meter, SimClock& clock, std::uint64_t num_bytes, TimeNs duration_ns) {
  meter.begin(num_bytes);
  clock.advance_ns(duration_ns);
  meter.end(num_bytes, num_bytes);
}

}  // namespace

TEST_CASE("a rate counts busy time only") {
  SimClock clock;
  RateMeter meter(clock);
  CHECK(meter.expected_bytes_per_s() == 0);
  for (int i = 0; i < 10; ++i) {
    move(meter, clock, 5 * kMb, 100 * kNsPerMs);
    clock.advance_ns(3 * kNsPerMs);
  }
  CHECK(meter.measured_bytes_per_s() == doctest::Approx(50e6));
}

TEST_CASE("operations side by side share the time") {
  SimClock clock;
  RateMeter meter(clock);
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 8; ++i) meter.begin(kMb);
    CHECK(meter.open_bytes() == 8 * kMb);
    for (int i = 0; i < 8; ++i) {
      clock.advance_ns(10 * kNsPerMs);
      meter.end(kMb, kMb);
    }
  }
  CHECK(meter.open_bytes() == 0);
  CHECK(meter.measured_bytes_per_s() == doctest::Approx(100e6));
}

TEST_CASE("too little work says nothing, and failed work moves nothing") {
  SimClock clock;
  RateMeter meter(clock);
  move(meter, clock, 4096, 4 * kNsPerMs);
  CHECK(meter.measured_bytes_per_s() == 0);
  move(meter, clock, 4096, 4 * kNsPerMs);
  CHECK(meter.measured_bytes_per_s() > 0);
  RateMeter failing(clock);
  failing.begin(kMb);
  clock.advance_ns(kNsPerS);
  failing.end(kMb, 0);
  CHECK(failing.measured_bytes_per_s() == 0);
  CHECK(failing.open_bytes() == 0);
}

TEST_CASE("the latest counts most, and a measurement grows old") {
  SimClock clock;
  RateMeter meter(clock);
  for (int i = 0; i < 20; ++i) move(meter, clock, 100 * kMb, 100 * kNsPerMs);
  CHECK(meter.measured_bytes_per_s() == doctest::Approx(1e9));
  for (int i = 0; i < 30; ++i) move(meter, clock, 5 * kMb, 100 * kNsPerMs);
  CHECK(meter.measured_bytes_per_s() == doctest::Approx(50e6).epsilon(0.1));
  const double measured = meter.measured_bytes_per_s();
  CHECK(meter.expected_bytes_per_s() == doctest::Approx(measured));
  clock.advance_ns(10 * kNsPerS);
  CHECK(meter.expected_bytes_per_s() == doctest::Approx(2 * measured));
  clock.advance_ns(20 * kNsPerS);
  CHECK(meter.expected_bytes_per_s() == doctest::Approx(8 * measured));
  CHECK(meter.measured_bytes_per_s() == doctest::Approx(measured));
  clock.advance_ns(1'000'000 * kNsPerS);
  CHECK(meter.expected_bytes_per_s() < 1e30);
  move(meter, clock, 5 * kMb, 100 * kNsPerMs);
  CHECK(meter.expected_bytes_per_s() == doctest::Approx(50e6).epsilon(0.1));
}
