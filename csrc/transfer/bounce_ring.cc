// Takes the ring's memory. Thread safety: see the header.
#include "transfer/bounce_ring.h"

#include <algorithm>

namespace kvtier::transfer {

Status BounceRing::take(std::uint64_t place_bytes) {
  if (memory_ != nullptr) return Status::ok();
  if (!refusal_.is_ok()) return refusal_;
  Status refused;
  for (std::uint64_t bytes = std::min(place_bytes, kPlaceBytesMax); bytes >= kPlaceBytesMin;
       bytes /= 2) {
    const std::uint64_t whole_bytes = bytes / kPlaceBytesMin * kPlaceBytesMin;
    Result<std::byte*> memory = device_.allocate_page_locked(num_places_ * whole_bytes);
    if (memory.is_ok()) {
      memory_ = memory.value();
      place_bytes_ = whole_bytes;
      return Status::ok();
    }
    refused = memory.status();
  }
  refusal_ = refused;
  return refusal_;
}

}  // namespace kvtier::transfer
