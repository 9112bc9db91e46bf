// Damages for format tests: every single flipped bit, every truncation. Single-threaded.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace kvtier::format {

/// Calls `check` once for each bit with that bit of `bytes` flipped; restores it after each call.
template <typename Check>
void for_each_flipped_bit(std::span<std::byte> bytes, const Check& check) {
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1u << (bit % 8));
    bytes[bit / 8] ^= mask;
    check(bit);
    bytes[bit / 8] ^= mask;
  }
}

/// Calls `check` with each shorter beginning of `bytes`, in memory of exactly that length so that a
/// read beyond it is caught.
template <typename Check>
void for_each_truncation(std::span<const std::byte> bytes, const Check& check) {
  for (std::size_t num_bytes = 0; num_bytes < bytes.size(); ++num_bytes) {
    const std::vector<std::byte> cut(bytes.begin(),
                                     bytes.begin() + static_cast<std::ptrdiff_t>(num_bytes));
    check(std::span<const std::byte>(cut));
  }
}

}  // namespace kvtier::format
