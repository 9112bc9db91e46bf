// Payloads that say what they are: each 8-byte word depends on a key, a generation and its own
// place, so that swapped, shifted or stale bytes cannot pass for the right ones. Thread-safe: no
// state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/random.h"

namespace kvtier::testing {

struct PayloadId {
  std::uint64_t key = 0;
  std::uint64_t generation = 0;
};

inline void fill_payload(const PayloadId& id, std::uint64_t offset_bytes,
                         std::span<std::byte> target) {
  std::uint64_t word = 0;
  for (std::size_t place = 0; place < target.size(); ++place) {
    const std::uint64_t offset = offset_bytes + place;
    if (place == 0 || offset % 8 == 0) {
      word = Random(id.key * 0x100000001ull + id.generation * 0x1003ull + offset / 8).next();
    }
    target[place] = static_cast<std::byte>(word >> (offset % 8 * 8));
  }
}

inline std::vector<std::byte> make_payload(const PayloadId& id, std::size_t length_bytes) {
  std::vector<std::byte> bytes(length_bytes);
  fill_payload(id, 0, bytes);
  return bytes;
}

/// Page-aligned memory, as direct I/O wants it.
class AlignedBytes {
 public:
  static constexpr std::size_t kAlignmentBytes = 4096;

  explicit AlignedBytes(std::size_t length_bytes) : length_bytes_(length_bytes) {
    const std::size_t whole_bytes =
        (length_bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
    bytes_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignmentBytes, whole_bytes)));
    std::memset(bytes_.get(), 0, whole_bytes);
  }

  std::span<std::byte> span() { return {bytes_.get(), length_bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::size_t length_bytes_;
  std::unique_ptr<std::byte, Free> bytes_;
};

inline bool are_equal(std::span<const std::byte> one, std::span<const std::byte> other) {
  return one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace kvtier::testing
