// CoreJob: what Python holds of a job. Its members are guarded by the GIL; waiting releases it.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "bindings/core_store.h"
#include "store/job.h"

namespace kvtier::bindings {

/// The store outlives it: every binding that makes one keeps the store alive.
class CoreJob {
 public:
  CoreJob(CoreStore& store, std::shared_ptr<Job> job) : store_(store), job_(std::move(job)) {}

  std::uint64_t job_id() const { return job_->job_id(); }
  bool is_put() const { return job_->kind() == Job::Kind::kPut; }
  /// In a forked child: ClosedError.
  bool is_ended() const;
  /// Outcomes, one a key. Throws TimeoutError, ClosedError, InternalError.
  KeyArray wait(double timeout_s);
  void cancel();

 private:
  CoreStore& store_;
  const std::shared_ptr<Job> job_;
};

}  // namespace kvtier::bindings
