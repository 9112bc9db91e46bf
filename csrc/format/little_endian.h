// Integers at byte positions, least significant byte first. Pure functions, thread-safe; the caller
// answers for the room.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/digest.h"

namespace kvtier::format {

static_assert(std::endian::native == std::endian::little ||
              std::endian::native == std::endian::big);

template <std::unsigned_integral Integer>
constexpr Integer swap_bytes_on_big_endian(Integer value) {
  if constexpr (std::endian::native == std::endian::little) return value;
  if constexpr (sizeof(Integer) == 2) return static_cast<Integer>(__builtin_bswap16(value));
  if constexpr (sizeof(Integer) == 4) return static_cast<Integer>(__builtin_bswap32(value));
  if constexpr (sizeof(Integer) == 8) return static_cast<Integer>(__builtin_bswap64(value));
}

template <std::unsigned_integral Integer>
void store_little_endian(std::byte* target, Integer value) {
  value = swap_bytes_on_big_endian(value);
  std::memcpy(target, &value, sizeof value);
}

template <std::unsigned_integral Integer>
Integer load_little_endian(const std::byte* source) {
  Integer value;
  std::memcpy(&value, source, sizeof value);
  return swap_bytes_on_big_endian(value);
}

inline void store_digest(std::byte* target, const Digest128& digest) {
  std::memcpy(target, digest.bytes.data(), digest.bytes.size());
}

inline Digest128 load_digest(const std::byte* source) {
  Digest128 digest;
  std::memcpy(digest.bytes.data(), source, digest.bytes.size());
  return digest;
}

inline bool is_all_zero(std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes) {
    if (byte != std::byte{0}) return false;
  }
  return true;
}

}  // namespace kvtier::format
