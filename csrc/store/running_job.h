// RunningJob: a put, get, save, load or prefetch that the copy pool drives. Guarded by the store's
// mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "store/store_impl.h"

namespace kvtier {

/// All that a job needs until it ends. The spans of its request point into it.
struct Store::Impl::RunningJob {
  std::shared_ptr<Job> job;
  StepPriority priority = StepPriority::kLoad;
  Outcome refusal = Outcome::kMiss;  // Of its blocks when it cannot be run.
  bool is_listed = true;             // By poll; nobody holds a handle else.
  std::vector<BlockKey> keys;
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> targets;
  std::function<void()> on_end;
  std::vector<std::size_t> undefined_indices;  // Of a load, once its task has ended.
  Status failure = Status::ok();               // The store's own, which broke the job.
  std::uint64_t prefetch_bytes = 0;
  std::uint64_t num_bytes = 0;
  std::optional<TimeNs> start_ns;  // None: refused.
  Flow flow{Flow::Driver::kPool};
  Task<Outcomes> task;
  bool is_started = false;
};

}  // namespace kvtier
