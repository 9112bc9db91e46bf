// Buckets of latencies: each call in one, the smallest that holds it.
#include "store/latency_stats.h"

#include <doctest/doctest.h>

#include <numeric>

using namespace kvtier;

TEST_CASE("a latency falls into the first bucket that is not below it") {
  const auto bucket_of = [](TimeNs latency_ns) {
    LatencyStats stats;
    stats.add(latency_ns);
    for (std::size_t i = 0; i < stats.buckets.size(); ++i) {
      if (stats.buckets[i] == 1) return i;
    }
    return stats.buckets.size();
  };
  CHECK(bucket_of(-5) == 0);
  CHECK(bucket_of(0) == 0);
  CHECK(bucket_of(1'000) == 0);
  CHECK(bucket_of(1'001) == 1);
  CHECK(bucket_of(2'000) == 1);
  CHECK(bucket_of(2'001) == 2);
  CHECK(bucket_of(kNsPerMs) == 10);
  CHECK(bucket_of(1024 * kNsPerUs) == 10);
  CHECK(bucket_of(1025 * kNsPerUs) == 11);
  CHECK(bucket_of(33 * kNsPerS) == 25);
  CHECK(bucket_of(34 * kNsPerS) == 26);
  CHECK(bucket_of(kNeverNs) == LatencyStats::kNumBuckets - 1);
}

TEST_CASE("every call is counted once") {
  LatencyStats stats;
  for (TimeNs latency_ns = 1; latency_ns < 100 * kNsPerS; latency_ns *= 3) stats.add(latency_ns);
  CHECK(std::accumulate(stats.buckets.begin(), stats.buckets.end(), std::uint64_t{0}) ==
        stats.calls);
  CHECK(stats.total_ns > 0);
}
