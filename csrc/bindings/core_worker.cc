// The calls of a worker's objects: convert, release the GIL, call, convert.
#include "bindings/core_worker.h"

#include <string>

#include "bindings/errors_binding.h"
#include "bindings/transfer_options_binding.h"

namespace kvtier::bindings {

namespace py = pybind11;

CoreArenaView::CoreArenaView(const std::vector<PlaceFields>& places) {
  const std::vector<ArenaPlace> parsed = arena_places_of(places);
  auto opened = [&] {
    const py::gil_scoped_release release;
    return paged::ArenaView::open(parsed);
  }();
  view_ = value_or_throw(std::move(opened));
}

CoreArenaView::~CoreArenaView() {
  // Devices wait for their threads here.
  const py::gil_scoped_release release;
  view_.reset();
}

paged::ArenaView& CoreArenaView::use() const {
  if (is_closed_) {
    throw_if_error(Status(StatusCode::kClosed,
                          "the view of the arena is closed, or was opened before a fork"));
  }
  return *view_;
}

void CoreArenaView::close(double timeout_s) {
  if (is_closed_) return;
  is_closed_ = true;
  const bool is_idle = [&] {
    const py::gil_scoped_release release;
    return view_->close(ns_from_s(timeout_s));
  }();
  if (is_idle) return;
  throw_if_error(
      Status(StatusCode::kTimeout,
             "a device still moves blocks; what it uses is kept until the process ends"));
}

paged::WorkerJob& CoreWorkerJob::job() const {
  if (!job_) throw_if_error(Status(StatusCode::kInvalidArgument, "no job was started"));
  return *job_;
}

bool CoreWorkerJob::is_ended() const {
  const bool is_ended = job().is_ended();
  if (is_ended) buffers_->release_ended();
  return is_ended;
}

py::tuple CoreWorkerJob::wait(double timeout_s) {
  const bool is_ended = job().is_ended() || [&] {
    (void)view_.use();
    const py::gil_scoped_release release;
    return job().wait(ns_from_s(timeout_s));
  }();
  if (!is_ended)
    throw_if_error(Status(StatusCode::kTimeout, "the plan is still being carried out"));
  buffers_->release_ended();
  return tuple_of(job().result());
}

void CoreWorkerJob::cancel() {
  if (job().is_ended()) return;
  (void)view_.use();
  job().cancel();
}

void CoreWorkerJob::order_stream_after(std::uint64_t stream_id, double timeout_s) {
  if (job().is_ended()) return;
  (void)view_.use();
  const Status ordered = [&] {
    const py::gil_scoped_release release;
    return job().order_stream_after({stream_id}, ns_from_s(timeout_s));
  }();
  throw_if_error(ordered);
}

CorePagedWorker::CorePagedWorker(CoreArenaView& view, const paged::PagedWorkerOptions& options,
                                 const std::vector<TensorPair>& tensors,
                                 const std::vector<FragmentFields>& fragments, py::object holders)
    : view_(view), holders_(std::move(holders)) {
  const auto places = places_of(tensors);
  const auto pieces = fragments_of(fragments);
  paged::ArenaView& used = view_.use();
  auto created = [&] {
    const py::gil_scoped_release release;
    return paged::PagedWorker::create(used, options, places, pieces);
  }();
  worker_ = value_or_throw(std::move(created));
}

void CorePagedWorker::submit(CoreWorkerJob& job, const py::dict& plan, const IdArray& block_ids,
                             std::uint64_t stream_id) {
  (void)view_.use();
  if (job.has_begun()) {
    throw_if_error(Status(StatusCode::kInvalidArgument, "the job was started before"));
  }
  buffers_->release_ended();
  const paged::MovePlan parsed = plan_of(plan);
  const std::uint64_t keep_id = buffers_->keep(holders_);
  const auto on_end = [buffers = buffers_, keep_id] { buffers->note_end(keep_id); };
  try {
    auto submitted = [&] {
      const py::gil_scoped_release release;
      return worker_->submit(parsed, {block_ids.data(), static_cast<std::size_t>(block_ids.size())},
                             {stream_id}, on_end);
    }();
    job.begin(value_or_throw(std::move(submitted)));
  } catch (...) {
    on_end();
    throw;
  }
}

py::dict CorePagedWorker::stats() const {
  (void)view_.use();
  paged::PagedDevice& device = worker_->device();
  const paged::PagedDevice::PageLock locked = device.page_lock();
  py::dict fields = dict_of(device.engine().stats());
  fields["note"] = device.engine().note();
  fields["device"] = device.engine().device_info().name;
  fields["page_lock"] = locked.state;
  fields["page_lock_note"] = locked.refusal;
  return fields;
}

}  // namespace kvtier::bindings
