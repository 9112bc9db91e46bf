// PlannedMover: makes each move of one save or load of a store a plan that other processes carry
// out. Thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "paged/plan_table.h"
#include "store/block_mover.h"

namespace kvtier::paged {

class PlannedMover final : public BlockMover {
 public:
  PlannedMover(std::shared_ptr<PlanTable> plans, const PlanTable::Call& call)
      : plans_(std::move(plans)), call_id_(plans_->open_call(call)) {}
  ~PlannedMover() override { plans_->close_call(call_id_); }

  Result<MoveId> start(BlockMove move, OnEnd on_end) override {
    return plans_->start(call_id_, std::move(move), std::move(on_end));
  }
  std::optional<BlockMoveResult> cancel(MoveId move_id, bool are_slots_dead) override {
    return plans_->cancel(move_id, are_slots_dead);
  }
  void finish_starting() override { plans_->finish_starting(call_id_); }

  /// As PlanTable::take(), put_back() and is_exhausted(), of this save or load.
  std::vector<MovePlan> take_plans(Clock& clock, TimeNs deadline_ns) {
    return plans_->take(call_id_, clock, deadline_ns);
  }
  void put_back_plans(std::span<const PlanId> plan_ids) { plans_->put_back(plan_ids); }
  bool is_exhausted() const { return plans_->is_exhausted(call_id_); }

 private:
  // Constant after construction.
  const std::shared_ptr<PlanTable> plans_;
  const PlanTable::CallId call_id_;
};

}  // namespace kvtier::paged
