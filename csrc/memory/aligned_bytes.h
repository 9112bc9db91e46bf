// AlignedBytes: a heap buffer that direct I/O accepts. Owned by one holder; no shared state.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace kvtier {

inline constexpr std::size_t kAlignedBytesUnit = 4096;

struct AlignedBytesDelete {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using AlignedBytes = std::unique_ptr<std::byte, AlignedBytesDelete>;

/// At least `num_bytes`, page aligned, not initialised. Throws std::bad_alloc.
inline AlignedBytes make_aligned_bytes(std::size_t num_bytes) {
  const std::size_t padded_bytes =
      (num_bytes + kAlignedBytesUnit - 1) / kAlignedBytesUnit * kAlignedBytesUnit;
  auto* bytes = static_cast<std::byte*>(std::aligned_alloc(kAlignedBytesUnit, padded_bytes));
  if (bytes == nullptr) throw std::bad_alloc();
  return AlignedBytes(bytes);
}

}  // namespace kvtier
