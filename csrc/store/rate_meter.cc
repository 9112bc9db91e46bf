// Rates over busy time. Guarded by the store's mutex.
#include "store/rate_meter.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvtier::store {
namespace {

// What happened this much busy time ago weighs a third.
constexpr double kMemoryS = 0.5;
// A few short operations are all latency and say nothing about a rate.
constexpr double kBusyMinS = 0.005;
constexpr double kDoublingS = 10;
constexpr double kDoublingsMax = 40;

double seconds_of(TimeNs time_ns) {
  return static_cast<double>(time_ns) / static_cast<double>(kNsPerS);
}

}  // namespace

void RateMeter::begin(std::uint64_t num_bytes) {
  if (num_open_++ == 0) counted_until_ns_ = clock_.now_ns();
  open_bytes_ += num_bytes;
}

void RateMeter::end(std::uint64_t num_bytes, std::uint64_t num_moved_bytes) {
  KVTIER_CHECK(num_open_ > 0);
  KVTIER_CHECK(open_bytes_ >= num_bytes);
  const TimeNs now_ns = clock_.now_ns();
  const double busy_s = seconds_of(now_ns - counted_until_ns_);
  counted_until_ns_ = now_ns;
  --num_open_;
  open_bytes_ -= num_bytes;
  const double weight = std::exp(-busy_s / kMemoryS);
  weighted_bytes_ = weighted_bytes_ * weight + static_cast<double>(num_moved_bytes);
  weighted_busy_s_ = weighted_busy_s_ * weight + busy_s;
}

double RateMeter::measured_bytes_per_s() const {
  return weighted_busy_s_ < kBusyMinS ? 0 : weighted_bytes_ / weighted_busy_s_;
}

double RateMeter::expected_bytes_per_s() const {
  const double measured = measured_bytes_per_s();
  if (num_open_ > 0) return measured;
  const double idle_s = seconds_of(clock_.now_ns() - counted_until_ns_);
  return measured * std::exp2(std::min(idle_s / kDoublingS, kDoublingsMax));
}

}  // namespace kvtier::store
