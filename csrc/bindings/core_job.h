// CoreJob: what Python holds of a job. Its members are guarded by the GIL; waiting releases it.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "bindings/core_store.h"
#include "bindings/paged_arguments.h"
#include "store/job.h"

namespace kvtier::bindings {

/// The store outlives it: every binding that makes one keeps the store alive.
class CoreJob {
 public:
  CoreJob(CoreStore& store, std::shared_ptr<Job> job) : store_(store), job_(std::move(job)) {}

  std::uint64_t job_id() const { return job_->job_id(); }
  /// "put", "get", "save" or "load"; "planned_save" or "planned_load" of one whose moves other
  /// processes carry out.
  const char* kind() const;
  /// In a forked child: ClosedError.
  bool is_ended() const;
  /// Outcomes, one a key. Throws TimeoutError, ClosedError, InternalError.
  KeyArray wait(double timeout_s);
  void cancel();
  /// Of a load that ended: int64[n], the rows whose memory holds nothing to rely on; of a planned
  /// one, the positions of their blocks in the keys.
  IdArray undefined_block_ids() const;
  /// Of a planned one: plans that nobody took yet; waits for the first of them.
  pybind11::list take_plans(double timeout_s);
  /// Of a planned one: whether take_plans() has given all that there will ever be.
  bool are_plans_exhausted() const;
  /// Orders work on the stream after a save or load. Throws TimeoutError.
  void order_stream_after(std::uint64_t stream_id, double timeout_s);

 private:
  /// Null: its moves are not planned.
  std::shared_ptr<paged::PlannedMover> planned_mover() const;
  CoreStore& store_;
  const std::shared_ptr<Job> job_;
};

}  // namespace kvtier::bindings
