// Binds what a worker process has of another one's store: ArenaView, PagedWorker, WorkerJob.
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/core_worker.h"
#include "bindings/transfer_options_binding.h"

namespace kvtier::bindings {
namespace {

namespace py = pybind11;

/// (first, num_parts, rank, generation).
using WorkerParts = std::tuple<std::size_t, std::size_t, std::uint32_t, std::uint64_t>;

std::unique_ptr<CorePagedWorker> make_worker(CoreArenaView& view, const py::bytes& namespace_id,
                                             std::vector<std::uint64_t> part_bytes,
                                             const WorkerParts& parts, int cuda_ordinal,
                                             const std::vector<TensorPair>& tensors,
                                             const std::vector<FragmentFields>& fragments,
                                             py::object holders, const py::dict& options) {
  const auto& [first, num_parts, rank, generation] = parts;
  paged::PagedWorkerOptions parsed;
  parsed.device = {cuda_ordinal, transfer_options_of(options)};
  parsed.namespace_id = digest_of(namespace_id);
  parsed.part_bytes = std::move(part_bytes);
  parsed.parts = {first, num_parts};
  parsed.rank = rank;
  parsed.generation = generation;
  return std::make_unique<CorePagedWorker>(view, parsed, tensors, fragments, std::move(holders));
}

}  // namespace

void bind_worker(py::module_& module) {
  py::class_<CoreArenaView> view(module, "ArenaView");
  view.def(py::init<const std::vector<PlaceFields>&>(), py::arg("places"));
  view.def("num_bytes", &CoreArenaView::num_bytes);
  view.def("close", &CoreArenaView::close, py::arg("timeout_s"));
  view.def("is_closed", &CoreArenaView::is_closed);
  view.def("abandon_after_fork", &CoreArenaView::abandon_after_fork);

  py::class_<CorePagedWorker> worker(module, "PagedWorker");
  py::class_<CoreWorkerJob> job(module, "WorkerJob");
  job.def(py::init([](const CorePagedWorker& it) { return it.make_job(); }), py::arg("worker"),
          py::keep_alive<1, 2>());
  job.def("has_begun", &CoreWorkerJob::has_begun);
  job.def("is_ended", &CoreWorkerJob::is_ended);
  job.def("wait", &CoreWorkerJob::wait, py::arg("timeout_s"));
  job.def("cancel", &CoreWorkerJob::cancel);
  job.def("order_stream_after", &CoreWorkerJob::order_stream_after, py::arg("stream_id"),
          py::arg("timeout_s"));

  worker.def(py::init(&make_worker), py::arg("view"), py::arg("namespace_id"),
             py::arg("part_bytes"), py::arg("parts"), py::arg("cuda_ordinal"), py::arg("tensors"),
             py::arg("fragments"), py::arg("holders"), py::arg("options"), py::keep_alive<1, 2>());
  worker.def("submit", &CorePagedWorker::submit, py::arg("job"), py::arg("plan"),
             py::arg("block_ids").noconvert(), py::arg("stream_id"));
  worker.def("stats", &CorePagedWorker::stats);
}

}  // namespace kvtier::bindings
