// Uses of an earlier run, found by key tags. One thread.
#include "store/earlier_uses.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "store/use_class.h"

namespace kvtier::store {
namespace {

// So many tags in one bucket do not come by chance.
constexpr int kBucketBlocksMax = 64;
// Three ranges of orders: unknown and older, known, unknown and younger.
constexpr std::uint64_t kKnownOrder = 1ull << 62;
constexpr std::uint64_t kYoungerOrder = 2ull << 62;

}  // namespace

std::optional<EarlierUses> EarlierUses::create(const format::UsesFile& file) {
  EarlierUses uses;
  uses.generation_ = file.generation;
  uses.blocks_ = file.blocks;
  uses.buckets_.assign(std::bit_ceil(file.blocks.size() + 1), kNowhere);
  uses.next_.assign(file.blocks.size(), kNowhere);
  std::vector<std::uint8_t> num_in_buckets(uses.buckets_.size(), 0);
  for (std::uint32_t i = 0; i < uses.blocks_.size(); ++i) {
    const format::UsedBlock& block = uses.blocks_[i];
    const std::size_t bucket = block.key_tag & (uses.buckets_.size() - 1);
    const bool is_sound = block.use_class < kNumUseClasses && block.num_uses > 0;
    if (!is_sound || ++num_in_buckets[bucket] > kBucketBlocksMax) return std::nullopt;
    uses.next_[i] = std::exchange(uses.buckets_[bucket], i);
    uses.oldest_age_ = std::max(uses.oldest_age_, block.age);
  }
  return uses;
}

EarlierUse EarlierUses::find(std::uint32_t key_tag, std::uint64_t disk_generation) const {
  const bool is_younger = disk_generation > generation_;
  const std::uint64_t by_commit = std::min(disk_generation, kKnownOrder - 1);
  std::uint32_t at = buckets_.empty() ? kNowhere : buckets_[key_tag & (buckets_.size() - 1)];
  while (at != kNowhere && blocks_[at].key_tag != key_tag) at = next_[at];
  EarlierUse found;
  if (at != kNowhere) {
    const format::UsedBlock& block = blocks_[at];
    found.use = BlockUse{now_ - block.age, block.use_class, block.num_uses};
    found.order = kKnownOrder + at;
  } else {
    found.use.position = now_ - oldest_age_;
    found.order = by_commit;
  }
  if (is_younger) {  // Written, and so used, since.
    found.use.position = now_;
    found.order = kYoungerOrder + by_commit;
  }
  return found;
}

}  // namespace kvtier::store
