// CoreJob: what Python holds of a job. Its members are guarded by the GIL; waiting releases it.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/core_store.h"
#include "bindings/paged_arguments.h"
#include "store/job.h"

namespace kvtier::bindings {

/// Made before its job, so that nothing has to be made once the job goes on. The store outlives it:
/// every binding that makes one keeps the store alive.
class CoreJob {
 public:
  explicit CoreJob(CoreStore& store) : store_(store) {}
  CoreJob(CoreStore& store, std::shared_ptr<Job> job) : store_(store), job_(std::move(job)) {}

  /// For the call that starts the job.
  void begin(std::shared_ptr<Job> job) noexcept { job_ = std::move(job); }
  bool has_begun() const { return job_ != nullptr; }

  // The others throw UsageError before.
  std::uint64_t job_id() const { return job().job_id(); }
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
  /// Of a planned one: appends plans that nobody took yet to `taken`, which is empty; waits for the
  /// first of them. When it throws they are as they were.
  void take_plans(double timeout_s, pybind11::list taken);
  /// Those of them that nobody will send to a rank.
  void put_back_plans(const std::vector<paged::PlanId>& plan_ids);
  /// Of a planned one: whether take_plans() has given all that there will ever be.
  bool are_plans_exhausted() const;
  /// Orders work on the stream after a save or load. Throws TimeoutError.
  void order_stream_after(std::uint64_t stream_id, double timeout_s);

 private:
  Job& job() const;
  /// Null: its moves are not planned.
  std::shared_ptr<paged::PlannedMover> planned_mover() const;
  CoreStore& store_;
  std::shared_ptr<Job> job_;  // Null: none was started.
};

}  // namespace kvtier::bindings
