// PagedWorker: carries out plans of a store in another process: moves its parts of blocks between
// the store's slots and the rows of its own tensors. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "layout/paged_geometry.h"
#include "paged/arena_view.h"
#include "paged/move_plan.h"
#include "paged/paged_attachment.h"
#include "paged/submitted_plans.h"
#include "paged/worker_job.h"

namespace kvtier::paged {

struct PagedWorkerOptions {
  PagedDeviceOptions device;
  NamespaceId namespace_id;
  std::uint32_t rank = 0;                 // What the store counts this process as.
  std::vector<std::uint64_t> part_bytes;  // Of all parts of a block.
  PartRange parts;                        // Those that the tensors hold.
  /// Plans made before are for a process that was in this one's place.
  std::uint64_t generation = 0;
};

class PagedWorker {
 public:
  /// The view outlives the worker. The tensors stay allocated until it and its jobs have ended.
  /// kInvalidArgument: parts that are not there or do not add up to the fragments; else as
  /// TransferEngine::attach() and ArenaView::device().
  static Result<std::unique_ptr<PagedWorker>> create(
      ArenaView& view, const PagedWorkerOptions& options,
      std::span<const layout::TensorPlace> tensors,
      std::span<const layout::FragmentPlace> fragments);

  PagedWorker(const PagedWorker&) = delete;
  PagedWorker& operator=(const PagedWorker&) = delete;

  /// Starts a plan, after what is on `stream` by now. `on_end` (may be empty) is called once the
  /// job has ended, from another thread; it must not block.
  /// block_ids: the row of each key of the call, by position.
  /// Ownership: rows and slots belong to the job until its end was observed.
  /// Does not block. kInvalidArgument: a plan of another namespace or of parts of another size, one
  /// that was submitted before to a worker of this rank over the view, one older than the worker,
  /// slots outside the arena, rows out of range; else as TransferEngine::submit().
  Result<std::shared_ptr<WorkerJob>> submit(const MovePlan& plan,
                                            std::span<const std::int64_t> block_ids,
                                            StreamId stream, std::function<void()> on_end);

  PagedDevice& device() { return *attachment_->device(); }

 private:
  struct Rows;

  PagedWorker(ArenaView& view, const PagedWorkerOptions& options)
      : view_(view), options_(options) {}
  Status check_plan(const MovePlan& plan) const;
  Result<Rows> find_rows(const MovePlan& plan, std::span<const std::int64_t> block_ids) const;
  std::vector<std::uint64_t> expected_sums(const MovePlan& plan, const Rows& rows) const;

  // Constant after create().
  ArenaView& view_;
  const PagedWorkerOptions options_;
  std::uint64_t parts_offset_bytes_ = 0;  // In a block.
  std::uint64_t parts_bytes_ = 0;
  std::shared_ptr<const PagedAttachment> attachment_;
  std::shared_ptr<SubmittedPlans> submitted_;  // Of all workers of the rank.
};

}  // namespace kvtier::paged
