// LogLimiter: lets few lines of one kind through, so that a failure that goes on for hours cannot
// flood a log. Guarded by the store's mutex.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/clock.h"

namespace kvtier::store {

class LogLimiter {
 public:
  /// Whether the line is to be written; if so, lines of its kind that were left out since the last
  /// one are mentioned at its end. A kind is what stands before the first colon.
  bool admit(std::string& text, TimeNs now_ns) {
    Kind& kind = kinds_[text.substr(0, text.find(':'))];
    const auto num_earned = static_cast<std::uint64_t>((now_ns - kind.counted_ns) / kEarnNs);
    if (kind.num_written == 0 || num_earned > 0) {
      kind.num_written -= num_earned < kind.num_written ? num_earned : kind.num_written;
      kind.counted_ns = now_ns;
    }
    if (kind.num_written >= kBurstMax) {
      ++kind.num_left_out;
      return false;
    }
    ++kind.num_written;
    if (kind.num_left_out > 0) {
      text += " (left out " + std::to_string(kind.num_left_out) + " such lines)";
      kind.num_left_out = 0;
    }
    return true;
  }

 private:
  static constexpr std::uint64_t kBurstMax = 3;
  static constexpr TimeNs kEarnNs = 600 * kNsPerS;  // Then one more may be written.

  struct Kind {
    std::uint64_t num_written = 0;  // Of the burst; shrinks with time.
    std::uint64_t num_left_out = 0;
    TimeNs counted_ns = 0;
  };

  std::map<std::string, Kind> kinds_;  // As many as there are texts in the source.
};

}  // namespace kvtier::store
