// The calls of CoreJob. Needs the GIL.
#include "bindings/core_job.h"

#include "bindings/array_arguments.h"
#include "bindings/errors_binding.h"

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

void CoreJob::cancel() {
  if (!is_ended()) store_.cancel_job(*job_);
}

}  // namespace kvtier::bindings
