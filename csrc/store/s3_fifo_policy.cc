// S3-FIFO: a small queue for newcomers, a main queue for what was used again, and ghosts of what
// left the small one. Guarded by the store's mutex.
#include <algorithm>

#include "store/eviction_policy.h"
#include "store/ghost_table.h"
#include "store/reuse_history.h"

namespace kvtier::store {
namespace {

// As in the paper: a tenth of the blocks, and two bits of uses.
constexpr std::size_t kSmallShare = 10;
constexpr std::uint16_t kUsesMax = 3;
constexpr std::uint16_t kSmallUsesMax = 2;  // With more a block goes to the main queue.
constexpr std::uint32_t kGhostsMin = 4096;

class S3FifoPolicy final : public EvictionPolicy {
 public:
  S3FifoPolicy(BlockIndex& index, TierId tier)
      : index_(index), tier_(static_cast<std::size_t>(tier)), ghosts_(kGhostsMin) {}

  void insert(EntryIndex entry) override {
    grow_ghosts();
    const std::uint32_t tag = tag_of(entry);
    const bool is_known = ghosts_.find(tag).has_value();
    if (is_known) ghosts_.remove(tag);
    append(entry, is_known ? kMain : kSmall, 0);
  }

  /// What has been used so often would have gone to the main queue when it came up.
  void insert_recovered(EntryIndex entry) override {
    grow_ghosts();
    const std::uint16_t uses = index_.at(entry).use.num_uses;
    if (uses > kSmallUsesMax) return append(entry, kMain, 1);
    append(entry, kSmall, uses);
  }

  /// The first touch comes from the call that stored the block, its chain's deepest block first:
  /// that is the order of the queue, so that leaves come up before what protects them.
  void touch(EntryIndex entry) override {
    const std::uint16_t queue = queue_of(entry);
    const std::uint16_t uses = index_.at(entry).queue[tier_] >> 1;
    if (uses == 0) {
      move(entry, queue, 1);
    } else if (uses <= kUsesMax) {
      index_.at(entry).queue[tier_] = static_cast<std::uint16_t>((uses + 1) << 1 | queue);
    }
  }

  void remove(EntryIndex entry) override {
    if (queue_of(entry) == kSmall) ghosts_.insert(tag_of(entry), 0);
    unlink(entry);
  }

  EntryIndex victim(const IsEvictable& is_evictable) override {
    // Each block comes up at most once for each of its uses, once in each queue and once more.
    std::size_t num_looks = num_blocks() * (kUsesMax + 4);
    while (num_looks-- > 0) {
      const bool is_small_due =
          queues_[kSmall].num_blocks * kSmallShare > num_blocks() || queues_[kMain].num_blocks == 0;
      const std::uint16_t queue = is_small_due ? kSmall : kMain;
      const EntryIndex candidate = queues_[queue].oldest;
      if (candidate == kNoEntry) return kNoEntry;
      const std::uint16_t uses = index_.at(candidate).queue[tier_] >> 1;
      if (queue == kSmall && uses > kSmallUsesMax) {
        move(candidate, kMain, 1);
      } else if (queue == kMain && uses > 1) {
        move(candidate, kMain, static_cast<std::uint16_t>(uses - 1));
      } else if (is_evictable(candidate)) {
        return candidate;
      } else {
        // In use, or with blocks below it: it comes up again, but must not stop the search.
        move(candidate, queue, uses);
      }
    }
    return kNoEntry;
  }

  std::size_t num_blocks() const override {
    return queues_[kSmall].num_blocks + queues_[kMain].num_blocks;
  }

  std::uint8_t num_uses(EntryIndex entry) const override {
    const std::uint16_t uses = index_.at(entry).queue[tier_] >> 1;
    const bool is_main = queue_of(entry) == kMain;
    return static_cast<std::uint8_t>(is_main ? kSmallUsesMax + 1 : uses);
  }

  float worth(EntryIndex entry) const override { return num_uses(entry) > kSmallUsesMax ? 1 : 0; }

 private:
  static constexpr std::uint16_t kSmall = 0;
  static constexpr std::uint16_t kMain = 1;
  struct Queue {
    EntryIndex newest = kNoEntry;
    EntryIndex oldest = kNoEntry;
    std::size_t num_blocks = 0;
  };

  std::uint32_t tag_of(EntryIndex entry) const {
    const BlockEntry& block = index_.at(entry);
    return key_tag_of(block.namespace_index, block.key);
  }
  std::uint16_t queue_of(EntryIndex entry) const { return index_.at(entry).queue[tier_] & 1; }

  /// The ghosts follow the size of the tier; their memory starts anew each time it has doubled.
  void grow_ghosts() {
    if (num_blocks() < num_ghosts_) return;
    num_ghosts_ = std::max<std::size_t>(num_ghosts_ * 2, kGhostsMin);
    ghosts_ = GhostTable(static_cast<std::uint32_t>(num_ghosts_));
  }

  void move(EntryIndex entry, std::uint16_t queue, std::uint16_t uses) {
    unlink(entry);
    append(entry, queue, uses);
  }

  void append(EntryIndex entry, std::uint16_t queue_index, std::uint16_t uses) {
    Queue& queue = queues_[queue_index];
    BlockEntry& added = index_.at(entry);
    added.queue[tier_] = static_cast<std::uint16_t>(uses << 1 | queue_index);
    added.links[tier_] = RecencyLinks{kNoEntry, queue.newest};
    if (queue.newest != kNoEntry) {
      index_.at(queue.newest).links[tier_].newer = entry;
    } else {
      queue.oldest = entry;
    }
    queue.newest = entry;
    ++queue.num_blocks;
  }

  void unlink(EntryIndex entry) {
    BlockEntry& left = index_.at(entry);
    Queue& queue = queues_[queue_of(entry)];
    const RecencyLinks links = left.links[tier_];
    (links.newer != kNoEntry ? index_.at(links.newer).links[tier_].older : queue.newest) =
        links.older;
    (links.older != kNoEntry ? index_.at(links.older).links[tier_].newer : queue.oldest) =
        links.newer;
    left.links[tier_] = RecencyLinks{};
    --queue.num_blocks;
  }

  BlockIndex& index_;
  const std::size_t tier_;
  Queue queues_[2];
  GhostTable ghosts_;
  std::size_t num_ghosts_ = kGhostsMin;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_s3_fifo_policy(BlockIndex& index, TierId tier) {
  return std::make_unique<S3FifoPolicy>(index, tier);
}

}  // namespace kvtier::store
