// The hash library's own secret, arranged by who reads it. Thread-safe.
#include "device/cuda_leaf_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/checksum.h"

namespace kvtier::cuda {

static_assert(kLeafBytes == kvtier::kLeafBytes);

LeafHashWords make_leaf_hash_words() {
  // Where the hash's long form reads its secret: the last stripe seven bytes before the place of
  // the scrambling, the merge eleven bytes in.
  constexpr std::size_t kScramblePlace = 192 - 64;
  constexpr std::size_t kLastPlace = kScramblePlace - 7;
  constexpr std::size_t kMergePlace = 11;
  static_assert(sizeof(XXH3_kSecret) == 192);
  const auto word_at = [](std::size_t place) -> unsigned long long {
    return XXH_readLE64(XXH3_kSecret + place);
  };
  LeafHashWords words{};
  for (std::size_t index = 0; index < 24; ++index) words.stripe[index] = word_at(8 * index);
  const unsigned long long begin[8] = {XXH_PRIME32_3, XXH_PRIME64_1, XXH_PRIME64_2, XXH_PRIME64_3,
                                       XXH_PRIME64_4, XXH_PRIME32_2, XXH_PRIME64_5, XXH_PRIME32_1};
  for (std::size_t lane = 0; lane < 8; ++lane) {
    words.last[lane] = word_at(kLastPlace + 8 * lane);
    words.scramble[lane] = word_at(kScramblePlace + 8 * lane);
    words.merge[lane] = word_at(kMergePlace + 8 * lane);
    words.begin[lane] = begin[lane];
  }
  words.length = kLeafBytes * XXH_PRIME64_1;
  return words;
}

}  // namespace kvtier::cuda
