// Sums up blocks. Thread safety: see the header.
#include "transfer/block_sums.h"

#include <algorithm>

#include "base/check.h"

namespace kvtier::transfer {

BlockSums::BlockSums(const FragmentTable& table, std::span<const ChecksumSeed> seeds,
                     std::span<const std::uint64_t> expected)
    : table_(table), seeds_(seeds), expected_(expected) {
  if (expected_.empty()) checksums_.reserve(seeds_.size() * table_.parts().size());
}

void BlockSums::take(std::span<const std::uint64_t> digests) {
  const std::size_t per_block = table_.leaves_per_block();
  while (!digests.empty()) {
    if (begun_.empty() && digests.size() >= per_block) {
      sum_block(digests.first(per_block));
      digests = digests.subspan(per_block);
      continue;
    }
    const std::size_t num_taken = std::min(per_block - begun_.size(), digests.size());
    begun_.insert(begun_.end(), digests.begin(),
                  digests.begin() + static_cast<std::ptrdiff_t>(num_taken));
    digests = digests.subspan(num_taken);
    if (begun_.size() < per_block) return;
    sum_block(begun_);
    begun_.clear();
  }
}

void BlockSums::sum_block(std::span<const std::uint64_t> digests) {
  KVTIER_CHECK(num_blocks_ < seeds_.size());
  const std::size_t block = num_blocks_++;
  const std::size_t num_parts = table_.parts().size();
  ChecksumSeed seed = seeds_[block];
  bool is_right = true;
  for (std::size_t part_index = 0; part_index < num_parts; ++part_index) {
    const FragmentTable::Part& part = table_.parts()[part_index];
    seed.part_index = static_cast<std::uint32_t>(part_index);
    const std::uint64_t sum =
        checksum_digests(digests.subspan(part.first_leaf, num_leaves_of(part.length_bytes)),
                         part.length_bytes, seed);
    if (expected_.empty()) {
      checksums_.push_back(sum);
    } else {
      is_right = is_right && sum == expected_[block * num_parts + part_index];
    }
  }
  if (!is_right) wrong_blocks_.push_back(block);
}

}  // namespace kvtier::transfer
