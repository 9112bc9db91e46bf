// Copies with digests: the bytes and the digests of the plain way, whatever length and place.
#include "base/leaf_copy.h"

#include <doctest/doctest.h>

#include <vector>

#include "testing/payload.h"

namespace kvtier::testing {
namespace {

TEST_CASE("a copy with digests gives the same bytes and digests as a copy and a hash") {
  constexpr std::size_t kLengthMax = 80000;
  const auto source = make_payload({1, 0}, kLengthMax + 64);
  for (const std::size_t num_bytes : {0, 1, 4095, 4096, 4097, 32767, 32768, 40000, 80000}) {
    for (const std::size_t shift : {0, 1, 17}) {
      INFO("num_bytes: ", num_bytes, " shift: ", shift);
      const auto from = std::span(source).subspan(shift, num_bytes);
      std::vector<std::byte> target(kLengthMax + 128, std::byte{0xa5});
      const auto to = std::span(target).subspan(64 - shift, num_bytes);
      std::vector<std::uint64_t> wanted(num_leaves_of(num_bytes));
      std::vector<std::uint64_t> digests(wanted.size());
      digest_leaves(from, wanted);
      copy_and_digest_leaves(to, from, digests);
      CHECK(digests == wanted);
      CHECK(are_equal(to, from));
      CHECK(target[64 - shift - 1] == std::byte{0xa5});
      CHECK(target[64 - shift + num_bytes] == std::byte{0xa5});
    }
  }
}

}  // namespace
}  // namespace kvtier::testing
