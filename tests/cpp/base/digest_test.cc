// Tests of 128-bit identities. Single-threaded.
#include "base/digest.h"

#include <doctest/doctest.h>

#include <cstring>

namespace kvtier {
namespace {

Digest128 make_digest() {
  Digest128 digest;
  for (std::size_t index = 0; index < 16; ++index) {
    digest.bytes[index] = static_cast<std::uint8_t>(0xf0 + 31 * index);
  }
  return digest;
}

TEST_CASE("a fresh digest is zero and any set bit makes it another") {
  CHECK(Digest128{}.is_zero());
  for (std::size_t bit = 0; bit < 128; ++bit) {
    Digest128 digest;
    digest.bytes[bit / 8] = static_cast<std::uint8_t>(1u << (bit % 8));
    CHECK(!digest.is_zero());
    CHECK(digest != Digest128{});
    CHECK(digest > Digest128{});
  }
}

TEST_CASE("a digest prints its bytes in order, two digits each") {
  CHECK(make_digest().to_hex() == "f00f2e4d6c8baac9e80726456483a2c1");
  CHECK(Digest128{}.to_hex() == std::string(32, '0'));
}

TEST_CASE("the head of a digest is its first eight bytes") {
  const Digest128 digest = make_digest();
  std::uint64_t head = 0;
  std::memcpy(&head, digest.bytes.data(), sizeof head);
  CHECK(digest.head() == head);
  Digest128 other = digest;
  other.bytes[15] ^= 1;
  CHECK(other.head() == head);
}

TEST_CASE("digests are ordered by their first differing byte") {
  Digest128 low = make_digest();
  Digest128 high = low;
  low.bytes[3] = 1;
  high.bytes[3] = 2;
  high.bytes[4] = 0;
  CHECK(low < high);
}

}  // namespace
}  // namespace kvtier
