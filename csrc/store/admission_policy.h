// AdmissionPolicy: whether a block may enter a tier. Guarded by the store's mutex.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/digest.h"
#include "store/reuse_history.h"

namespace kvtier::store {

struct AdmissionQuestion {
  std::uint32_t namespace_index = 0;
  BlockKey key;
  std::uint64_t request_hash = 0;  // 0: unknown, each call is a use of its own.
  bool is_tier_full = false;       // Admitting it means evicting another.
  BlockUse use;                    // What is known of the block.
  /// What is known of the block that would go for it; nothing: none can.
  std::function<std::optional<BlockUse>()> find_victim_use;
};

class AdmissionPolicy {
 public:
  virtual ~AdmissionPolicy() = default;
  /// Asked each time a block is offered to the tier.
  virtual bool is_admitted(const AdmissionQuestion& question) = 0;
};

/// Takes everything.
std::unique_ptr<AdmissionPolicy> make_admit_all();

/// Takes everything while there is room; then a block at its second use, by another request than
/// the first. Remembers `num_ghosts` first uses.
std::unique_ptr<AdmissionPolicy> make_second_use_admission(std::uint32_t num_ghosts);

/// Takes everything while there is room; then what is worth more than what would go for it. A first
/// use counts only where such uses have shown that they come back.
std::unique_ptr<AdmissionPolicy> make_adaptive_admission(const ReuseHistory& history);

}  // namespace kvtier::store
