// TierSpace: slots, eviction order and counters of one tier. Guarded by the store's mutex.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "store/eviction_policy.h"
#include "store/slot_space.h"
#include "store/store_stats.h"

namespace kvtier::store {

/// What happened to the block of a slot, for the slot table on disk.
enum class SlotChange : std::uint8_t {
  kStored,   // Became resident: its commit should be written soon.
  kEvicted,  // Its old commit may stay until the page is next written.
  kRemoved,  // Its old commit must go.
};

class TierSpace {
 public:
  TierSpace(BlockIndex& index, TierId tier) : id(tier), index_(index) {}

  ClassIndex class_index_of(const SizeClass& size_class) {
    const ClassIndex found = slots.class_index_of(size_class);
    while (policies_.size() <= found) policies_.push_back(make_policy());
    return found;
  }
  EvictionPolicy& policy(ClassIndex class_index) { return *policies_.at(class_index); }
  EvictionPolicy& policy_of(const BlockEntry& entry) {
    return policy(slots.segment(entry.slot(id).segment_index).class_index);
  }
  void set_policy(ClassIndex class_index, std::unique_ptr<EvictionPolicy> policy) {
    policies_.at(class_index) = std::move(policy);
  }

  const TierId id;
  SlotSpace slots;
  TierStats stats;
  /// Called for each change of a slot's block, before a slot is released.
  std::function<void(SlotRef, SlotChange)> on_change;
  /// Makes the policy of a new class.
  std::function<std::unique_ptr<EvictionPolicy>()> make_policy = [this] {
    return make_lru_policy(index_, id);
  };

 private:
  BlockIndex& index_;
  std::vector<std::unique_ptr<EvictionPolicy>> policies_;  // By class.
};

}  // namespace kvtier::store
