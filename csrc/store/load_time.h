// LoadTime: adds up how long loads of blocks would take, one after the other, from expected rates
// and what is queued before them. A plain value; not thread-safe.
#pragma once

#include <cstdint>

#include "store/outcome.h"

namespace kvtier::store {

struct LoadRates {
  double read_bytes_per_s = 0;  // Of the disk; 0: unknown, counts as no time.
  double copy_bytes_per_s = 0;  // From host memory; 0: unknown, counts as no time.
  std::uint64_t queued_read_bytes = 0;
};

class LoadTime {
 public:
  explicit LoadTime(const LoadRates& rates) : rates_(rates) {}

  /// Adds a block of `num_bytes` in that tier. Returns the seconds until it, and all that were
  /// added before it, are there.
  double add(Tier tier, std::uint64_t num_bytes) {
    if (tier == Tier::kHost) {
      host_bytes_ += num_bytes;
    } else {
      // The disk works off what is queued first.
      if (disk_bytes_ == 0) disk_bytes_ = rates_.queued_read_bytes;
      disk_bytes_ += num_bytes;
    }
    return seconds(disk_bytes_, rates_.read_bytes_per_s) +
           seconds(host_bytes_, rates_.copy_bytes_per_s);
  }

 private:
  static double seconds(std::uint64_t num_bytes, double bytes_per_s) {
    return bytes_per_s > 0 ? static_cast<double>(num_bytes) / bytes_per_s : 0;
  }

  LoadRates rates_;
  std::uint64_t host_bytes_ = 0;
  std::uint64_t disk_bytes_ = 0;
};

}  // namespace kvtier::store
