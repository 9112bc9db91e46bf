// The system's monotonic clock. Thread-safe.
#include "base/clock.h"

#include <ctime>

namespace kvtier {

TimeNs ns_from_s(double seconds) {
  if (!(seconds > 0)) return 0;
  constexpr double kSecondsMax = static_cast<double>(kNeverNs / kNsPerS);
  if (seconds >= kSecondsMax) return kNeverNs;
  return static_cast<TimeNs>(seconds * static_cast<double>(kNsPerS));
}

TimeNs SystemClock::now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<TimeNs>(now.tv_sec) * kNsPerS + now.tv_nsec;
}

}  // namespace kvtier
