// Least recently used, as a list through the entries' own links. Guarded by the store's mutex.
#include "store/eviction_policy.h"

namespace kvtier::store {
namespace {

class LruPolicy final : public EvictionPolicy {
 public:
  LruPolicy(BlockIndex& index, TierId tier)
      : index_(index), tier_(static_cast<std::size_t>(tier)) {}

  void insert(EntryIndex entry) override {
    RecencyLinks& links = links_of(entry);
    KVTIER_CHECK(links.newer == kNoEntry);
    KVTIER_CHECK(links.older == kNoEntry);
    links.older = newest_;
    if (newest_ != kNoEntry) links_of(newest_).newer = entry;
    newest_ = entry;
    if (oldest_ == kNoEntry) oldest_ = entry;
    ++num_blocks_;
  }

  void touch(EntryIndex entry) override {
    if (entry == newest_) return;
    remove(entry);
    insert(entry);
  }

  void remove(EntryIndex entry) override {
    RecencyLinks& links = links_of(entry);
    if (links.newer != kNoEntry) {
      links_of(links.newer).older = links.older;
    } else {
      KVTIER_CHECK(newest_ == entry);
      newest_ = links.older;
    }
    if (links.older != kNoEntry) {
      links_of(links.older).newer = links.newer;
    } else {
      KVTIER_CHECK(oldest_ == entry);
      oldest_ = links.newer;
    }
    links = RecencyLinks{};
    --num_blocks_;
  }

  EntryIndex victim(const IsEvictable& is_evictable) override {
    // What cannot go now is in use, or has descendants in use: it moves to the newest end, so that
    // the next search does not meet it again. Each block is looked at once at most.
    for (std::size_t i = 0; i < num_blocks_; ++i) {
      const EntryIndex candidate = oldest_;
      if (is_evictable(candidate)) return candidate;
      touch(candidate);
    }
    return kNoEntry;
  }

  std::size_t num_blocks() const override { return num_blocks_; }

 private:
  RecencyLinks& links_of(EntryIndex entry) { return index_.at(entry).links[tier_]; }

  BlockIndex& index_;
  const std::size_t tier_;
  EntryIndex newest_ = kNoEntry;
  EntryIndex oldest_ = kNoEntry;
  std::size_t num_blocks_ = 0;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_lru_policy(BlockIndex& index, TierId tier) {
  return std::make_unique<LruPolicy>(index, tier);
}

}  // namespace kvtier::store
