// Digest128: 128-bit identities (keys, namespaces, stores). Plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace kvtier {

/// 16 bytes, compared and stored as they are (no byte order).
struct Digest128 {
  std::array<std::uint8_t, 16> bytes{};

  friend bool operator==(const Digest128& a, const Digest128& b) {
    // Two words, in line: a call to compare 16 bytes costs more than the comparison.
    return ((a.head() ^ b.head()) | (a.tail() ^ b.tail())) == 0;
  }
  friend auto operator<=>(const Digest128&, const Digest128&) = default;

  bool is_zero() const { return *this == Digest128{}; }
  /// The first 8 bytes as a number: keys are cryptographic digests, so this is already a hash.
  std::uint64_t head() const {
    std::uint64_t value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::uint64_t tail() const {
    std::uint64_t value;
    std::memcpy(&value, bytes.data() + 8, sizeof value);
    return value;
  }
  std::string to_hex() const;
};

using BlockKey = Digest128;
using NamespaceId = Digest128;

}  // namespace kvtier
