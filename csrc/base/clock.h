// Clock: the only source of time in the core, so that a simulation can replace it. Thread-safe.
#pragma once

#include <cstdint>

namespace kvtier {

/// Nanoseconds on a monotonic clock; only differences mean anything.
using TimeNs = std::int64_t;
/// "Never": far in the future, yet safe to compare and to subtract from.
inline constexpr TimeNs kNeverNs = INT64_MAX / 2;

inline constexpr TimeNs kNsPerUs = 1'000;
inline constexpr TimeNs kNsPerMs = 1'000'000;
inline constexpr TimeNs kNsPerS = 1'000'000'000;

/// Seconds to nanoseconds; negative becomes 0, beyond the range of the clock becomes kNeverNs.
TimeNs ns_from_s(double seconds);

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimeNs now_ns() = 0;
};

/// CLOCK_MONOTONIC.
class SystemClock final : public Clock {
 public:
  TimeNs now_ns() override;
};

}  // namespace kvtier
