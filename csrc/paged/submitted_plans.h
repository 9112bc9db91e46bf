// SubmittedPlans: which plans one rank has begun with, so that none is carried out twice, whichever
// of the rank's workers it is given to. Thread-safe.
#pragma once

#include <cstddef>
#include <mutex>
#include <set>

#include "paged/move_plan.h"

namespace kvtier::paged {

class SubmittedPlans {
 public:
  /// Far more than can be under way. Plans older than these count as submitted.
  static constexpr std::size_t kPlansMax = 65'536;

  /// Before the first byte. False: somebody was before.
  bool note(PlanId plan_id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (plan_id <= last_forgotten_ || !plan_ids_.insert(plan_id).second) return false;
    if (plan_ids_.size() > kPlansMax) {
      last_forgotten_ = *plan_ids_.begin();
      plan_ids_.erase(plan_ids_.begin());
    }
    return true;
  }
  /// Nothing of it was begun after all.
  void take_back(PlanId plan_id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    plan_ids_.erase(plan_id);
  }

 private:
  // Guarded by mutex_.
  std::mutex mutex_;
  std::set<PlanId> plan_ids_;
  PlanId last_forgotten_ = 0;
};

}  // namespace kvtier::paged
