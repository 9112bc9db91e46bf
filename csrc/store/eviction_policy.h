// EvictionPolicy: in which order the blocks of one tier and size class go. Guarded by the store's
// mutex.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "store/block_index.h"

namespace kvtier::store {

class EvictionPolicy {
 public:
  using IsEvictable = std::function<bool(EntryIndex)>;

  virtual ~EvictionPolicy() = default;
  /// The block became resident in the tier.
  virtual void insert(EntryIndex entry) = 0;
  /// The block was used.
  virtual void touch(EntryIndex entry) = 0;
  /// The block leaves the tier, evicted or removed.
  virtual void remove(EntryIndex entry) = 0;
  /// The first block in order for which `is_evictable`; kNoEntry when there is none. Does not
  /// remove it.
  virtual EntryIndex victim(const IsEvictable& is_evictable) = 0;
  virtual std::size_t num_blocks() const = 0;
};

/// Least recently used first. Callers touch a chain from its deepest block up to its root, so the
/// oldest block is a leaf unless something protects the blocks below it.
std::unique_ptr<EvictionPolicy> make_lru_policy(BlockIndex& index, TierId tier);

}  // namespace kvtier::store
