// AdmissionPolicy: whether a block may enter a tier. Guarded by the store's mutex.
#pragma once

#include <cstdint>
#include <memory>

#include "base/digest.h"

namespace kvtier::store {

struct AdmissionQuestion {
  std::uint32_t namespace_index = 0;
  BlockKey key;
  std::uint64_t request_hash = 0;  // 0: unknown, each call is a use of its own.
  bool is_tier_full = false;       // Admitting it means evicting another.
};

class AdmissionPolicy {
 public:
  virtual ~AdmissionPolicy() = default;
  /// Asked each time a block is offered to the tier.
  virtual bool is_admitted(const AdmissionQuestion& question) = 0;
};

/// Takes everything.
std::unique_ptr<AdmissionPolicy> make_admit_all();

}  // namespace kvtier::store
