// Until when to wait, and how long on a condition variable at a time. Pure.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/clock.h"

namespace kvtier {

/// `span_ns` after `now_ns`; a span without an end has none.
inline TimeNs deadline_after(TimeNs now_ns, TimeNs span_ns) {
  return span_ns >= kNeverNs - now_ns ? kNeverNs : now_ns + span_ns;
}

/// What is left until the deadline, nothing when it is past, and at most a minute: kNeverNs would
/// overflow the library's clock arithmetic. A piece that ends early only re-checks the condition.
inline std::chrono::nanoseconds piece_until(TimeNs now_ns, TimeNs deadline_ns) {
  return std::chrono::nanoseconds(std::clamp<TimeNs>(deadline_ns - now_ns, 0, 60 * kNsPerS));
}

}  // namespace kvtier
