// LatencyStats: how long calls of one kind took, in buckets of powers of two. Plain values.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace kvtier {

/// Counts are calls, whatever their outcome. Counters never decrease.
struct LatencyStats {
  /// Bucket i holds calls of up to 2^i microseconds that are in no bucket before it; the last one,
  /// from 33.6 s on, has no upper bound.
  static constexpr std::size_t kNumBuckets = 27;

  std::uint64_t calls = 0;
  std::uint64_t total_ns = 0;
  std::array<std::uint64_t, kNumBuckets> buckets{};

  void add(TimeNs latency_ns) {
    const auto whole_ns = static_cast<std::uint64_t>(std::max<TimeNs>(0, latency_ns));
    const std::uint64_t whole_us = (whole_ns + kNsPerUs - 1) / kNsPerUs;
    // The smallest i with whole_us <= 2^i.
    const auto bucket = static_cast<std::size_t>(whole_us <= 1 ? 0 : std::bit_width(whole_us - 1));
    ++buckets[std::min(bucket, kNumBuckets - 1)];
    ++calls;
    total_ns += whole_ns;
  }
};

}  // namespace kvtier
