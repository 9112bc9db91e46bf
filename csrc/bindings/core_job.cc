// The calls of CoreJob. Needs the GIL.
#include "bindings/core_job.h"

#include "bindings/array_arguments.h"
#include "bindings/errors_binding.h"
#include "paged/paged_mover.h"
#include "paged/planned_mover.h"

namespace kvtier::bindings {

Job& CoreJob::job() const {
  if (!job_) throw_if_error(Status(StatusCode::kInvalidArgument, "no job was started"));
  return *job_;
}

bool CoreJob::is_ended() const {
  store_.check_not_forked();
  if (!job().is_ended()) return false;
  store_.release_buffers();
  return true;
}

KeyArray CoreJob::wait(double timeout_s) {
  // What has ended can be looked at after close as well.
  if (!is_ended()) store_.wait_job(job(), timeout_s);
  throw_if_error(job().status());
  return array_of(job().outcomes());
}

const char* CoreJob::kind() const {
  const Job::Kind kind = job().kind();
  if (!planned_mover()) return job_kind_word(kind);
  return kind == Job::Kind::kSave ? "planned_save" : "planned_load";
}

IdArray CoreJob::undefined_block_ids() const {
  std::vector<std::int64_t> ids;
  if (planned_mover()) {
    ids.assign(job().undefined_indices().begin(), job().undefined_indices().end());
    return IdArray(static_cast<pybind11::ssize_t>(ids.size()), ids.data());
  }
  // Only the bindings start saves and loads, with these two kinds of mover.
  const auto mover = std::static_pointer_cast<paged::PagedMover>(job().mover());
  for (const std::size_t index : job().undefined_indices()) {
    ids.push_back(mover->block_ids()[index]);
  }
  return IdArray(static_cast<pybind11::ssize_t>(ids.size()), ids.data());
}

std::shared_ptr<paged::PlannedMover> CoreJob::planned_mover() const {
  return std::dynamic_pointer_cast<paged::PlannedMover>(job().mover());
}

void CoreJob::take_plans(double timeout_s, pybind11::list taken) {
  store_.take_plans(*planned_mover(), timeout_s, std::move(taken));
}

void CoreJob::put_back_plans(const std::vector<paged::PlanId>& plan_ids) {
  store_.put_back_plans(*planned_mover(), plan_ids);
}

bool CoreJob::are_plans_exhausted() const {
  store_.check_not_forked();
  return planned_mover()->is_exhausted();
}

void CoreJob::order_stream_after(std::uint64_t stream_id, double timeout_s) {
  // What has ended needs no order, after close as well.
  if (is_ended()) return;
  const auto mover = std::static_pointer_cast<paged::PagedMover>(job().mover());
  store_.order_stream_after(job(), *mover, stream_id, timeout_s);
}

void CoreJob::cancel() {
  if (!is_ended()) store_.cancel_job(job());
}

}  // namespace kvtier::bindings
