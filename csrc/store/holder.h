// Holder: somebody whose lease or job keeps blocks from eviction. Plain values.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace kvtier {

struct Holder {
  const char* kind = "";  // "lease", "put", "get", "save", "load" or "prefetch".
  std::string owner;      // As the caller named himself; empty: he did not. Only leases have one.
  std::uint64_t id = 0;   // Of the lease or job.
  std::uint64_t num_blocks = 0;
  std::uint64_t num_bytes = 0;  // Of a job: of all its blocks, those that are done included.
  TimeNs since_ns = 0;
  TimeNs until_ns = kNeverNs;  // When a lease expires.
};

}  // namespace kvtier
