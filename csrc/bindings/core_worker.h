// CoreArenaView, CorePagedWorker and CoreWorkerJob: what Python holds of another process's store
// and of the plans that it carries out for it. Guarded by the GIL; the calls release it.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/buffer_keeper.h"
#include "bindings/plan_arguments.h"
#include "paged/arena_view.h"
#include "paged/paged_worker.h"

namespace kvtier::bindings {

class CoreArenaView {
 public:
  explicit CoreArenaView(const std::vector<PlaceFields>& places);
  ~CoreArenaView();
  CoreArenaView(const CoreArenaView&) = delete;
  CoreArenaView& operator=(const CoreArenaView&) = delete;

  std::uint64_t num_bytes() const { return use().num_bytes(); }
  /// Throws TimeoutError: something is still on a device, and keeps what it uses.
  void close(double timeout_s);
  bool is_closed() const { return is_closed_; }
  /// Throws ClosedError after close and in the child of a fork.
  paged::ArenaView& use() const;
  void abandon_after_fork() { is_closed_ = true; }

 private:
  std::unique_ptr<paged::ArenaView> view_;
  bool is_closed_ = false;
};

/// Made before its job, so that nothing has to be made once the job goes on.
class CoreWorkerJob {
 public:
  CoreWorkerJob(CoreArenaView& view, std::shared_ptr<BufferKeeper> buffers)
      : view_(view), buffers_(std::move(buffers)) {}

  /// For CorePagedWorker::submit().
  void begin(std::shared_ptr<paged::WorkerJob> job) noexcept { job_ = std::move(job); }
  bool has_begun() const { return job_ != nullptr; }

  // The others throw UsageError before.
  bool is_ended() const;
  /// (status, message, checksums, undefined_indices). Throws TimeoutError.
  pybind11::tuple wait(double timeout_s);
  void cancel();
  void order_stream_after(std::uint64_t stream_id, double timeout_s);

 private:
  paged::WorkerJob& job() const;

  CoreArenaView& view_;                    // Kept by the binding.
  std::shared_ptr<paged::WorkerJob> job_;  // Null: none was started.
  const std::shared_ptr<BufferKeeper> buffers_;
};

class CorePagedWorker {
 public:
  CorePagedWorker(CoreArenaView& view, const paged::PagedWorkerOptions& options,
                  const std::vector<TensorPair>& tensors,
                  const std::vector<FragmentFields>& fragments, pybind11::object holders);
  CorePagedWorker(const CorePagedWorker&) = delete;
  CorePagedWorker& operator=(const CorePagedWorker&) = delete;

  std::unique_ptr<CoreWorkerJob> make_job() const {
    return std::make_unique<CoreWorkerJob>(view_, buffers_);
  }
  /// Starts `job`, which has not begun; when it throws, no job was started.
  void submit(CoreWorkerJob& job, const pybind11::dict& plan, const IdArray& block_ids,
              std::uint64_t stream_id);
  pybind11::dict stats() const;

 private:
  CoreArenaView& view_;  // Kept by the binding.
  std::unique_ptr<paged::PagedWorker> worker_;
  pybind11::object holders_;
  const std::shared_ptr<BufferKeeper> buffers_ = std::make_shared<BufferKeeper>();
};

}  // namespace kvtier::bindings
