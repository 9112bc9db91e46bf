// BounceRing: page-locked memory of the engine's own that stands in for slots that are not, chunk
// by chunk, so that no copy of the device has to wait for the driver. Used by the engine's thread
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/device.h"

namespace kvtier::transfer {

class BounceRing {
 public:
  /// Of one place: small enough that the thread's own copies run beside the device's.
  static constexpr std::uint64_t kPlaceBytesMax = 4u << 20;
  static constexpr std::uint64_t kPlaceBytesMin = 64u << 10;

  /// `device` outlives the ring.
  BounceRing(Device& device, std::size_t num_places) : device_(device), num_places_(num_places) {}
  /// Requires: nothing in flight uses it.
  ~BounceRing() { device_.deallocate_page_locked(memory_); }
  BounceRing(const BounceRing&) = delete;
  BounceRing& operator=(const BounceRing&) = delete;

  /// Takes the memory with the first call: places of `place_bytes`, or of half as much and so on
  /// where that is refused. The refusal of the smallest stays.
  Status take(std::uint64_t place_bytes);
  std::uint64_t place_bytes() const { return place_bytes_; }
  std::byte* place(std::size_t index) const { return memory_ + index * place_bytes_; }
  std::uint64_t num_bytes() const { return memory_ == nullptr ? 0 : num_places_ * place_bytes_; }

 private:
  Device& device_;
  const std::size_t num_places_;
  std::byte* memory_ = nullptr;
  std::uint64_t place_bytes_ = 0;
  Status refusal_;
};

}  // namespace kvtier::transfer
