// AlignedBuffer: a heap buffer that direct I/O accepts. Owned by one holder; no shared state.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace kvtier {

inline constexpr std::size_t kAlignedBufferUnit = 4096;

struct AlignedBufferDelete {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using AlignedBuffer = std::unique_ptr<std::byte, AlignedBufferDelete>;

/// At least `num_bytes`, page aligned, not initialised. Throws std::bad_alloc.
inline AlignedBuffer make_aligned_buffer(std::size_t num_bytes) {
  const std::size_t padded_bytes =
      (num_bytes + kAlignedBufferUnit - 1) / kAlignedBufferUnit * kAlignedBufferUnit;
  auto* bytes = static_cast<std::byte*>(std::aligned_alloc(kAlignedBufferUnit, padded_bytes));
  if (bytes == nullptr) throw std::bad_alloc();
  return AlignedBuffer(bytes);
}

}  // namespace kvtier
