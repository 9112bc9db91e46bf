// Binds CoreStore as kvtier._core.Store over the system's clock, threads and files.
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/core_attachment.h"
#include "bindings/core_job.h"
#include "bindings/core_store.h"
#include "bindings/plan_arguments.h"

namespace kvtier::bindings {
namespace {

namespace py = pybind11;

std::unique_ptr<CoreStore> open_store(const py::dict& options, py::object log) {
  return std::make_unique<CoreStore>(
      options, std::move(log),
      [](const StoreOptions& parsed, std::function<void(const char*, const std::string&)> push) {
        return Store::open(parsed, std::move(push));
      });
}

/// Each job keeps the store alive, as one from put_async does.
py::list poll_jobs(const py::object& store) {
  py::list jobs;
  for (auto& polled : store.cast<CoreStore&>().poll_jobs()) {
    py::object job = py::cast(std::move(polled));
    py::detail::keep_alive_impl(job, store);
    jobs.append(std::move(job));
  }
  return jobs;
}

void bind_job(py::module_& module) {
  py::class_<CoreJob> job(module, "Job");
  job.def(py::init<CoreStore&>(), py::arg("store"), py::keep_alive<1, 2>());
  job.def("has_begun", &CoreJob::has_begun);
  job.def_property_readonly("job_id", &CoreJob::job_id);
  job.def_property_readonly("kind", &CoreJob::kind);
  job.def("is_ended", &CoreJob::is_ended);
  job.def("wait", &CoreJob::wait, py::arg("timeout_s"));
  job.def("cancel", &CoreJob::cancel);
  job.def("undefined_block_ids", &CoreJob::undefined_block_ids);
  job.def("take_plans", &CoreJob::take_plans, py::arg("timeout_s"), py::arg("taken"));
  job.def("put_back_plans", &CoreJob::put_back_plans, py::arg("plan_ids"));
  job.def("are_plans_exhausted", &CoreJob::are_plans_exhausted);
  job.def("order_stream_after", &CoreJob::order_stream_after, py::arg("stream_id"),
          py::arg("timeout_s"));
}

bool finish_plan(CoreStore& store, const AnswerFields& fields, const AddressArray& checksums,
                 const IdArray& undefined_indices) {
  return store.finish_plan(answer_of(fields, checksums, undefined_indices));
}

void bind_plans(py::class_<CoreStore>& store) {
  store.def("plan_save", &CoreStore::plan_save, py::arg("job"), py::arg("namespace_index"),
            py::arg("keys").noconvert(), py::arg("ranks"), py::arg("parent"), py::arg("chain"),
            py::arg("request_hash"), py::arg("timeout_s"));
  store.def("plan_load", &CoreStore::plan_load, py::arg("job"), py::arg("namespace_index"),
            py::arg("keys").noconvert(), py::arg("ranks"), py::arg("prefix"),
            py::arg("request_hash"), py::arg("timeout_s"));
  store.def("finish_plan", &finish_plan, py::arg("fields"), py::arg("checksums").noconvert(),
            py::arg("undefined_indices").noconvert());
  store.def("abandon_rank", &CoreStore::abandon_rank, py::arg("rank"));
  store.def("plan_generation", &CoreStore::plan_generation);
  store.def("share_arenas", [](CoreStore& it) { return fields_of(it.share_arenas()); });
}

void bind_attachment(py::module_& module) {
  py::class_<CoreAttachment> attachment(module, "Attachment");
  attachment.def("save", &CoreAttachment::save, py::arg("job"), py::arg("keys").noconvert(),
                 py::arg("block_ids").noconvert(), py::arg("stream_id"), py::arg("parent"),
                 py::arg("chain"), py::arg("request_hash"), py::arg("timeout_s"));
  attachment.def("load", &CoreAttachment::load, py::arg("job"), py::arg("keys").noconvert(),
                 py::arg("block_ids").noconvert(), py::arg("stream_id"), py::arg("prefix"),
                 py::arg("request_hash"), py::arg("timeout_s"));
  attachment.def("detach", &CoreAttachment::detach);
  attachment.def("stats", &CoreAttachment::stats);
}

}  // namespace

void bind_store(py::module_& module) {
  py::class_<CoreStore> store(module, "Store");
  bind_job(module);
  bind_attachment(module);
  bind_plans(store);
  store.def("attach", &CoreStore::attach, py::arg("namespace_index"), py::arg("cuda_ordinal"),
            py::arg("tensors"), py::arg("fragments"), py::arg("part_bytes"), py::arg("holders"),
            py::arg("options"), py::keep_alive<0, 1>());
  store.def("put_async", &CoreStore::put_async, py::arg("job"), py::arg("namespace_index"),
            py::arg("keys").noconvert(), py::arg("addresses").noconvert(), py::arg("holders"),
            py::arg("parent"), py::arg("chain"), py::arg("request_hash"), py::arg("timeout_s"));
  store.def("get_async", &CoreStore::get_async, py::arg("job"), py::arg("namespace_index"),
            py::arg("keys").noconvert(), py::arg("addresses").noconvert(), py::arg("holders"),
            py::arg("prefix"), py::arg("request_hash"), py::arg("timeout_s"));
  store.def("poll_jobs", &poll_jobs);
  store.def("job_event_fd", &CoreStore::job_event_fd);
  store.def("prefetch", &CoreStore::prefetch, py::arg("namespace_index"),
            py::arg("keys").noconvert());
  store.def(py::init(&open_store), py::arg("options"), py::arg("log"));
  store.def("add_namespace", &CoreStore::add_namespace, py::arg("namespace_id"),
            py::arg("description"), py::arg("block_bytes"), py::arg("part_bytes"));
  store.def("lookup", &CoreStore::lookup, py::arg("namespace_index"), py::arg("keys").noconvert(),
            py::arg("prefix"), py::arg("max_load_s"));
  store.def("lease", &CoreStore::lease, py::arg("namespace_index"), py::arg("keys").noconvert(),
            py::arg("prefix"), py::arg("ttl_s"), py::arg("owner"));
  store.def("release", &CoreStore::release, py::arg("lease_id"));
  store.def("lease_expires_in_s", &CoreStore::lease_expires_in_s, py::arg("lease_id"));
  store.def("put", &CoreStore::put, py::arg("namespace_index"), py::arg("keys").noconvert(),
            py::arg("addresses").noconvert(), py::arg("parent"), py::arg("chain"),
            py::arg("request_hash"), py::arg("timeout_s"));
  store.def("get", &CoreStore::get, py::arg("namespace_index"), py::arg("keys").noconvert(),
            py::arg("addresses").noconvert(), py::arg("prefix"), py::arg("request_hash"),
            py::arg("timeout_s"));
  store.def("erase", &CoreStore::erase, py::arg("namespace_index"), py::arg("keys").noconvert());
  store.def("erase_where", &CoreStore::erase_where, py::arg("namespace_id"),
            py::arg("segment_ids"));
  store.def("pin", &CoreStore::pin, py::arg("namespace_index"), py::arg("keys").noconvert());
  store.def("unpin", &CoreStore::unpin, py::arg("namespace_index"), py::arg("keys").noconvert());
  store.def("flush", &CoreStore::flush, py::arg("timeout_s"));
  store.def("clear", &CoreStore::clear, py::arg("host"), py::arg("disk"));
  store.def("stats", &CoreStore::stats);
  store.def("holders", &CoreStore::holders, py::arg("num_max"));
  store.def("close", &CoreStore::close, py::arg("timeout_s"));
  store.def("is_closed", &CoreStore::is_closed);
  store.def("abandon_after_fork", &CoreStore::abandon_after_fork);
  store.def("drain_log", &CoreStore::drain_log);
}

}  // namespace kvtier::bindings
