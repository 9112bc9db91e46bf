// The calls of CoreJob. Needs the GIL.
#include "bindings/core_job.h"

#include "bindings/array_arguments.h"
#include "bindings/errors_binding.h"
#include "bindings/plan_arguments.h"
#include "paged/paged_mover.h"
#include "paged/planned_mover.h"

namespace kvtier::bindings {

bool CoreJob::is_ended() const {
  store_.check_not_forked();
  if (!job_->is_ended()) return false;
  store_.release_buffers();
  return true;
}

KeyArray CoreJob::wait(double timeout_s) {
  // What has ended can be looked at after close as well.
  if (!is_ended()) store_.wait_job(*job_, timeout_s);
  throw_if_error(job_->status());
  return array_of(job_->outcomes());
}

const char* CoreJob::kind() const {
  switch (job_->kind()) {
    case Job::Kind::kPut:
      return "put";
    case Job::Kind::kGet:
      return "get";
    case Job::Kind::kSave:
      return planned_mover() ? "planned_save" : "save";
    case Job::Kind::kLoad:
      return planned_mover() ? "planned_load" : "load";
  }
  return "";
}

IdArray CoreJob::undefined_block_ids() const {
  std::vector<std::int64_t> ids;
  if (planned_mover()) {
    ids.assign(job_->undefined_indices().begin(), job_->undefined_indices().end());
    return IdArray(static_cast<pybind11::ssize_t>(ids.size()), ids.data());
  }
  // Only the bindings start saves and loads, with these two kinds of mover.
  const auto mover = std::static_pointer_cast<paged::PagedMover>(job_->mover());
  for (const std::size_t index : job_->undefined_indices()) {
    ids.push_back(mover->block_ids()[index]);
  }
  return IdArray(static_cast<pybind11::ssize_t>(ids.size()), ids.data());
}

std::shared_ptr<paged::PlannedMover> CoreJob::planned_mover() const {
  return std::dynamic_pointer_cast<paged::PlannedMover>(job_->mover());
}

pybind11::list CoreJob::take_plans(double timeout_s) {
  pybind11::list plans;
  const auto mover = planned_mover();
  for (const auto& plan : store_.take_plans(*mover, timeout_s)) plans.append(dict_of(plan));
  return plans;
}

bool CoreJob::are_plans_exhausted() const {
  store_.check_not_forked();
  return planned_mover()->is_exhausted();
}

void CoreJob::order_stream_after(std::uint64_t stream_id, double timeout_s) {
  // What has ended needs no order, after close as well.
  if (is_ended()) return;
  const auto mover = std::static_pointer_cast<paged::PagedMover>(job_->mover());
  store_.order_stream_after(*job_, *mover, stream_id, timeout_s);
}

void CoreJob::cancel() {
  if (!is_ended()) store_.cancel_job(*job_);
}

}  // namespace kvtier::bindings
