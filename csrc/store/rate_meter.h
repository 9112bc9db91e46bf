// RateMeter: how many bytes a second go one way while any are going, weighted towards the latest.
// Guarded by the store's mutex.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace kvtier::store {

class RateMeter {
 public:
  /// `clock` outlives it.
  explicit RateMeter(Clock& clock) : clock_(clock) {}

  /// An operation of so many bytes starts. Time counts while at least one is open.
  void begin(std::uint64_t num_bytes);
  /// It ends; `num_moved_bytes` less than it began with when it failed.
  void end(std::uint64_t num_bytes, std::uint64_t num_moved_bytes);

  /// Of operations that have not ended.
  std::uint64_t open_bytes() const { return open_bytes_; }
  /// What was measured; 0: too little so far to say.
  double measured_bytes_per_s() const;
  /// What may be expected now; 0: unknown. A measurement that nobody has renewed for a while is
  /// trusted less and less: the expectation doubles every 10 s, so that one slow moment does not
  /// keep everybody from ever trying again.
  double expected_bytes_per_s() const;

 private:
  Clock& clock_;
  std::uint64_t num_open_ = 0;
  std::uint64_t open_bytes_ = 0;
  TimeNs counted_until_ns_ = 0;  // Of the time with operations open; the last end when none is.
  double weighted_bytes_ = 0;
  double weighted_busy_s_ = 0;
};

}  // namespace kvtier::store
