// ThrottleOptions: another disk on paper, as plain values.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace kvtier {

/// A disk on paper. An op of b bytes takes `latency_ns`, and b / rate of its direction's channel,
/// which serves one op after another; so n ops at once reach min(rate, n × b / (b / rate +
/// latency)).
struct ThrottleOptions {
  /// 0: as fast as what lies beneath.
  std::uint64_t read_bytes_per_s = 0;
  std::uint64_t write_bytes_per_s = 0;
  TimeNs latency_ns = 0;
  /// Ops that the disk has running at once, tasks not counted. 0: any number.
  std::uint32_t queue_depth_max = 0;
};

}  // namespace kvtier
