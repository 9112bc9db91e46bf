// EvictionPolicy: in which order the blocks of one tier and size class go. Guarded by the store's
// mutex.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "store/block_index.h"
#include "store/reuse_history.h"

namespace kvtier::store {

class EvictionPolicy {
 public:
  using IsEvictable = std::function<bool(EntryIndex)>;

  virtual ~EvictionPolicy() = default;
  /// The block became resident in the tier.
  virtual void insert(EntryIndex entry) = 0;
  /// As insert(), of a block that an earlier process stored; its entry's `use` says what that knew.
  virtual void insert_recovered(EntryIndex entry) { insert(entry); }
  /// The block was used.
  virtual void touch(EntryIndex entry) = 0;
  /// The block leaves the tier, evicted or removed.
  virtual void remove(EntryIndex entry) = 0;
  /// The first block in order for which `is_evictable`; kNoEntry when there is none. Does not
  /// remove it.
  virtual EntryIndex victim(const IsEvictable& is_evictable) = 0;
  virtual std::size_t num_blocks() const = 0;
  /// Uses of the block that only the policy counts, for insert_recovered(); 0: none.
  virtual std::uint8_t num_uses(EntryIndex /*entry*/) const { return 0; }
  /// Grows with what keeping the block is worth; of equals the one used last is worth more.
  virtual float worth(EntryIndex /*entry*/) const { return 0; }
};

/// Least recently used first. Callers touch a chain from its deepest block up to its root, so the
/// oldest block is a leaf unless something protects the blocks below it.
std::unique_ptr<EvictionPolicy> make_lru_policy(BlockIndex& index, TierId tier);

/// S3-FIFO with the paper's shares. Protected blocks go round the main queue.
std::unique_ptr<EvictionPolicy> make_s3_fifo_policy(BlockIndex& index, TierId tier);

/// The block whose slot is worth least by the model of `history`, which the entries' `use` follow.
std::unique_ptr<EvictionPolicy> make_adaptive_policy(BlockIndex& index, TierId tier,
                                                     ReuseHistory& history);

}  // namespace kvtier::store
