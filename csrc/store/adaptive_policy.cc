// The adaptive order: lists of blocks of one use class and step of age, the least valuable first.
// Guarded by the store's mutex.
#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "store/admission_policy.h"
#include "store/eviction_policy.h"

namespace kvtier::store {
namespace {

// Blocks move on to the next step of age no later than so many uses after they reached it.
constexpr std::uint32_t kUsesPerSweep = 256;
// Of the blocks that could not go when their turn came, so many are tried anew at each search.
constexpr int kRetriesPerSearch = 2;
// Host memory takes every block, so its newest first uses have this share of it for themselves:
// what was just written can be read at once. The disk takes only what is worth it.
constexpr std::size_t kHostWindowShare = 16;
// A newcomer must be worth so much more than what would go for it: a write costs something.
constexpr float kGainMin = 1.1f;
// And on a full tier a first use must have shown that one in so many comes back.
constexpr float kReturnShareMin = 1.0f / 16;

class AdaptivePolicy final : public EvictionPolicy {
 public:
  AdaptivePolicy(BlockIndex& index, TierId tier, ReuseHistory& history)
      : index_(index), tier_(static_cast<std::size_t>(tier)), history_(history) {}

  void insert(EntryIndex entry) override {
    history_.set_num_blocks(++num_blocks_);
    if (tier_ != static_cast<std::size_t>(TierId::kHost) || index_.at(entry).use.num_uses > 1) {
      return file(entry);
    }
    append(entry, kWindow);
    ++num_in_window_;
    const std::size_t num_in_window_max = std::max<std::size_t>(1, num_blocks_ / kHostWindowShare);
    while (num_in_window_ > num_in_window_max) refile(queues_[kWindow].oldest);
  }

  void touch(EntryIndex entry) override {
    const BlockEntry& used = index_.at(entry);
    // The touch of the call that stored it.
    if (used.queue[tier_] == kWindow && used.use.num_uses < 2) return;
    refile(entry);
  }

  void remove(EntryIndex entry) override {
    unlink(entry);
    --num_blocks_;
    // Its parent may be a leaf now.
    const EntryIndex parent = index_.at(entry).parent;
    if (parent == kNoEntry) return;
    const BlockEntry& above = index_.at(parent);
    if (above.is_resident(static_cast<TierId>(tier_)) && above.queue[tier_] == kBlocked) {
      refile(parent);
    }
  }

  EntryIndex victim(const IsEvictable& is_evictable) override {
    follow_model();
    if (history_.now() - sweep_use_ >= kUsesPerSweep) sweep();
    for (int i = 0; i < kRetriesPerSearch && queues_[kBlocked].oldest != kNoEntry; ++i) {
      refile(queues_[kBlocked].oldest);
    }
    while (true) {
      const std::size_t rank = first_rank();
      if (rank == kNumRanks) break;
      const std::uint16_t cell = history_.model().cell_at(rank);
      const EntryIndex candidate = queues_[cell].oldest;
      if (cell_of(candidate) != cell) {
        refile(candidate);  // It has aged since it was filed.
      } else if (is_evictable(candidate)) {
        return candidate;
      } else {
        unlink(candidate);
        append(candidate, kBlocked);
      }
    }
    // All that is left is new, or was in use when it was looked at and may not be any more.
    const EntryIndex blocked = first_evictable(kBlocked, is_evictable);
    return blocked != kNoEntry ? blocked : first_evictable(kWindow, is_evictable);
  }

  std::size_t num_blocks() const override { return num_blocks_; }
  float worth(EntryIndex entry) const override { return history_.value(index_.at(entry).use); }

 private:
  static constexpr std::size_t kNumRanks = ReuseModel::kNumCells;
  static constexpr std::uint16_t kBlocked = ReuseModel::kNumCells;
  static constexpr std::uint16_t kWindow = kBlocked + 1;
  struct Queue {
    EntryIndex newest = kNoEntry;
    EntryIndex oldest = kNoEntry;
  };

  std::uint16_t cell_of(EntryIndex entry) const {
    const BlockUse& use = index_.at(entry).use;
    return ReuseModel::cell_of(use.use_class, history_.now() - use.position);
  }
  void file(EntryIndex entry) { append(entry, cell_of(entry)); }
  void refile(EntryIndex entry) {
    unlink(entry);
    file(entry);
  }

  EntryIndex first_evictable(std::uint16_t queue_index, const IsEvictable& is_evictable) const {
    EntryIndex entry = queues_[queue_index].oldest;
    while (entry != kNoEntry && !is_evictable(entry)) entry = index_.at(entry).links[tier_].newer;
    return entry;
  }

  void append(EntryIndex entry, std::uint16_t queue_index) {
    Queue& queue = queues_[queue_index];
    BlockEntry& added = index_.at(entry);
    added.queue[tier_] = queue_index;
    added.links[tier_] = RecencyLinks{kNoEntry, queue.newest};
    if (queue.newest != kNoEntry) {
      index_.at(queue.newest).links[tier_].newer = entry;
    } else {
      queue.oldest = entry;
      mark(queue_index, true);
    }
    queue.newest = entry;
  }

  void unlink(EntryIndex entry) {
    BlockEntry& left = index_.at(entry);
    Queue& queue = queues_[left.queue[tier_]];
    const RecencyLinks links = left.links[tier_];
    if (links.newer != kNoEntry) {
      index_.at(links.newer).links[tier_].older = links.older;
    } else {
      KVTIER_CHECK(queue.newest == entry);
      queue.newest = links.older;
    }
    if (links.older != kNoEntry) {
      index_.at(links.older).links[tier_].newer = links.newer;
    } else {
      KVTIER_CHECK(queue.oldest == entry);
      queue.oldest = links.newer;
    }
    left.links[tier_] = RecencyLinks{};
    if (left.queue[tier_] == kWindow) --num_in_window_;
    if (queue.oldest == kNoEntry) mark(left.queue[tier_], false);
  }

  void mark(std::uint16_t queue_index, bool is_used) {
    if (queue_index >= kBlocked) return;
    const std::uint16_t rank = history_.model().rank_of(queue_index);
    const std::uint64_t bit = 1ull << (rank % 64);
    // A new order of the model is followed as a whole, in follow_model().
    if (generation_ != history_.model().generation()) return;
    used_ranks_[rank / 64] = is_used ? used_ranks_[rank / 64] | bit : used_ranks_[rank / 64] & ~bit;
  }

  void follow_model() {
    if (generation_ == history_.model().generation()) return;
    generation_ = history_.model().generation();
    used_ranks_.fill(0);
    for (std::uint16_t cell = 0; cell < ReuseModel::kNumCells; ++cell) {
      if (queues_[cell].oldest != kNoEntry) mark(cell, true);
    }
  }

  std::size_t first_rank() const {
    for (std::size_t word = 0; word < used_ranks_.size(); ++word) {
      if (used_ranks_[word] != 0) return word * 64 + std::countr_zero(used_ranks_[word]);
    }
    return kNumRanks;
  }

  void sweep() {
    sweep_use_ = history_.now();
    for (std::uint16_t cell = 0; cell < ReuseModel::kNumCells; ++cell) {
      while (queues_[cell].oldest != kNoEntry) {
        const EntryIndex oldest = queues_[cell].oldest;
        if (cell_of(oldest) == cell) break;
        refile(oldest);
      }
    }
  }

  BlockIndex& index_;
  const std::size_t tier_;
  ReuseHistory& history_;
  std::vector<Queue> queues_ = std::vector<Queue>(kWindow + 1);
  std::array<std::uint64_t, kNumRanks / 64> used_ranks_{};  // Ranks whose queue is not empty.
  static_assert(kNumRanks % 64 == 0);
  std::uint32_t generation_ = 0;
  std::uint32_t sweep_use_ = 0;
  std::size_t num_blocks_ = 0;
  std::size_t num_in_window_ = 0;
};

class AdaptiveAdmission final : public AdmissionPolicy {
 public:
  explicit AdaptiveAdmission(const ReuseHistory& history) : history_(history) {}

  bool is_admitted(const AdmissionQuestion& question) override {
    if (!question.is_tier_full) return true;
    const std::optional<BlockUse> victim_use = question.find_victim_use();
    // None of its own size can go: whether it gets a slot is not a matter of worth.
    if (!victim_use) return true;
    const bool is_first = question.use.num_uses < 2;
    if (is_first && history_.model().return_share(question.use.use_class) < kReturnShareMin) {
      return false;
    }
    return history_.value(question.use) > kGainMin * history_.value(*victim_use);
  }

 private:
  const ReuseHistory& history_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_adaptive_policy(BlockIndex& index, TierId tier,
                                                     ReuseHistory& history) {
  return std::make_unique<AdaptivePolicy>(index, tier, history);
}

std::unique_ptr<AdmissionPolicy> make_adaptive_admission(const ReuseHistory& history) {
  return std::make_unique<AdaptiveAdmission>(history);
}

}  // namespace kvtier::store
