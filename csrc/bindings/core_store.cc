// The calls of CoreStore: convert, release the GIL, call, convert.
#include "bindings/core_store.h"

#include <chrono>

#include "bindings/array_arguments.h"
#include "bindings/core_job.h"
#include "bindings/core_store_call.h"
#include "bindings/errors_binding.h"
#include "bindings/store_options_binding.h"
#include "bindings/store_stats_binding.h"

namespace kvtier::bindings {
namespace {

namespace py = pybind11;

double seconds_of(TimeNs time_ns) {
  return static_cast<double>(time_ns) / static_cast<double>(kNsPerS);
}

py::dict dict_of(const ClearResult& result) {
  py::dict fields;
  fields["blocks"] = result.blocks;
  fields["bytes"] = result.bytes;
  fields["pending_blocks"] = result.pending_blocks;
  return fields;
}

}  // namespace

CoreStore::CoreStore(const py::dict& options, py::object log, const Open& open)
    : log_(std::move(log)) {
  const StoreOptions parsed = store_options_of(options);
  const auto push = [lines = lines_](const char* level, const std::string& text) {
    lines->push(level, text);
  };
  auto opened = [&] {
    const py::gil_scoped_release release;
    return open(parsed, push);
  }();
  deliver_log();
  store_ = value_or_throw(std::move(opened), CallKind::kSetUp);
}

CoreStore::~CoreStore() {
  {
    // The core's destructor waits for its threads, which a Python thread may hold up.
    const py::gil_scoped_release release;
    if (store_) {
      plans_->close();
      store_.reset();
      plans_->forget_all();
    }
    devices_.clear();
    arena_server_.reset();
  }
  if (!is_forked_) release_buffers();
}

std::shared_ptr<Store> CoreStore::use() const {
  if (is_closed_) throw_closed();
  return store_;
}

void CoreStore::count_call(bool is_begun) {
  const std::lock_guard<std::mutex> lock(calls_mutex_);
  num_calls_ = is_begun ? num_calls_ + 1 : num_calls_ - 1;
  calls_changed_.notify_all();
}

void CoreStore::deliver_log() {
  for (const auto& [level, text] : lines_->take_all()) {
    try {
      log_(level, py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
                      text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace")));
    } catch (py::error_already_set& error) {
      // A line that cannot be logged must not fail the call that happened to carry it.
      error.discard_as_unraisable("kvtier log");
    }
  }
}

std::uint32_t CoreStore::add_namespace(const py::bytes& id, const std::string& description,
                                       std::uint64_t block_bytes,
                                       std::vector<std::uint64_t> part_bytes) {
  NamespaceOptions options{digest_of(id), description, block_bytes, std::move(part_bytes)};
  auto result = run([&](Store& store) { return store.add_namespace(options); });
  return value_or_throw(std::move(result), CallKind::kSetUp);
}

py::tuple CoreStore::lookup(std::uint32_t namespace_index, const py::array& keys, bool prefix,
                            double max_load_s) {
  const auto span = key_span_of(keys);
  const TimeNs max_load_ns = ns_from_s(max_load_s);
  const auto found = value_or_throw(
      run([&](Store& store) { return store.lookup(namespace_index, span, prefix, max_load_ns); }));
  return py::make_tuple(found.num_blocks, array_of(found.tiers));
}

py::tuple CoreStore::lease(std::uint32_t namespace_index, const py::array& keys, bool prefix,
                           double ttl_s, std::string owner) {
  const auto span = key_span_of(keys);
  const TimeNs ttl_ns = ns_from_s(ttl_s);
  const auto leased = value_or_throw(run([&](Store& store) {
    return store.lease(namespace_index, span, prefix, ttl_ns, std::move(owner));
  }));
  return py::make_tuple(leased.lease_id, leased.found.num_blocks, array_of(leased.found.tiers));
}

bool CoreStore::release(std::uint64_t lease_id) {
  return run([&](Store& store) { return store.release(lease_id); });
}

double CoreStore::lease_expires_in_s(std::uint64_t lease_id) {
  return seconds_of(run([&](Store& store) { return store.lease_expires_in_ns(lease_id); }));
}

KeyArray CoreStore::put(std::uint32_t namespace_index, const KeyArray& keys,
                        const AddressArray& addresses, const std::optional<py::bytes>& parent,
                        bool chain, std::uint64_t request_hash, double timeout_s) {
  const auto copied = keys_of(keys);
  const auto pointers = pointers_of(addresses, copied.size());
  const std::vector<const std::byte*> sources(pointers.begin(), pointers.end());
  PutRequest request{namespace_index,     copied, sources, parent_of(parent), chain, request_hash,
                     ns_from_s(timeout_s)};
  return array_of(value_or_throw(run([&](Store& store) { return store.put(request); })));
}

KeyArray CoreStore::get(std::uint32_t namespace_index, const KeyArray& keys,
                        const AddressArray& addresses, bool prefix, std::uint64_t request_hash,
                        double timeout_s) {
  const auto copied = keys_of(keys);
  const auto pointers = pointers_of(addresses, copied.size());
  const GetRequest request{namespace_index, copied,       pointers,
                           prefix,          request_hash, ns_from_s(timeout_s)};
  return array_of(value_or_throw(run([&](Store& store) { return store.get(request); })));
}

void CoreStore::put_async(CoreJob& job, std::uint32_t namespace_index, const KeyArray& keys,
                          const AddressArray& addresses, py::object holders,
                          const std::optional<py::bytes>& parent, bool chain,
                          std::uint64_t request_hash, double timeout_s) {
  const auto copied = keys_of(keys);
  const auto pointers = pointers_of(addresses, copied.size());
  const std::vector<const std::byte*> sources(pointers.begin(), pointers.end());
  const PutRequest request{namespace_index,     copied, sources,
                           parent_of(parent),   chain,  request_hash,
                           ns_from_s(timeout_s)};
  submit(job, std::move(holders), [&](Store& store, std::function<void()> on_end) {
    return store.put_async(request, std::move(on_end));
  });
}

void CoreStore::get_async(CoreJob& job, std::uint32_t namespace_index, const KeyArray& keys,
                          const AddressArray& addresses, py::object holders, bool prefix,
                          std::uint64_t request_hash, double timeout_s) {
  const auto copied = keys_of(keys);
  const auto pointers = pointers_of(addresses, copied.size());
  const GetRequest request{namespace_index, copied,       pointers,
                           prefix,          request_hash, ns_from_s(timeout_s)};
  submit(job, std::move(holders), [&](Store& store, std::function<void()> on_end) {
    return store.get_async(request, std::move(on_end));
  });
}

template <typename Submit>
void CoreStore::submit(CoreJob& job, py::object holders, const Submit& submit_job) {
  if (job.has_begun()) {
    throw_if_error(Status(StatusCode::kInvalidArgument, "the job was started before"));
  }
  const std::uint64_t keep_id = buffers_->keep(std::move(holders));
  const auto on_end = [buffers = buffers_, keep_id] { buffers->note_end(keep_id); };
  try {
    throw_if_error(run([&](Store& store) {
      auto submitted = submit_job(store, on_end);
      if (submitted.is_ok()) job.begin(std::move(submitted).value());
      return submitted.status();
    }));
  } catch (...) {
    if (!job.has_begun()) on_end();
    throw;
  }
}

void CoreStore::save_async(CoreJob& job, const SaveRequest& request, py::object holders) {
  submit(job, std::move(holders), [&](Store& store, std::function<void()> on_end) {
    return store.save_async(request, std::move(on_end));
  });
}

void CoreStore::load_async(CoreJob& job, const LoadRequest& request, py::object holders) {
  submit(job, std::move(holders), [&](Store& store, std::function<void()> on_end) {
    return store.load_async(request, std::move(on_end));
  });
}

void CoreStore::check_not_forked() const {
  if (is_forked_) throw_closed();
}

void CoreStore::wait_job(const Job& job, double timeout_s) {
  throw_if_error(run([&](Store& store) { return store.wait_job(job, ns_from_s(timeout_s)); }));
}

void CoreStore::cancel_job(const Job& job) {
  throw_if_error(run([&](Store& store) { return store.cancel_job(job); }));
}

std::vector<std::unique_ptr<CoreJob>> CoreStore::poll_jobs() {
  std::vector<std::unique_ptr<CoreJob>> jobs;
  for (auto& job : value_or_throw(run([](Store& store) { return store.poll_jobs(); }))) {
    jobs.push_back(std::make_unique<CoreJob>(*this, std::move(job)));
  }
  return jobs;
}

int CoreStore::job_event_fd() {
  return value_or_throw(run([](Store& store) { return store.job_event_fd(); }));
}

void CoreStore::prefetch(std::uint32_t namespace_index, const KeyArray& keys) {
  const auto copied = keys_of(keys);
  throw_if_error(run([&](Store& store) { return store.prefetch(namespace_index, copied); }));
}

std::uint64_t CoreStore::erase(std::uint32_t namespace_index, const KeyArray& keys) {
  const auto copied = keys_of(keys);
  return value_or_throw(run([&](Store& store) { return store.erase(namespace_index, copied); }));
}

std::uint64_t CoreStore::pin(std::uint32_t namespace_index, const KeyArray& keys) {
  const auto copied = keys_of(keys);
  return value_or_throw(run([&](Store& store) { return store.pin(namespace_index, copied); }));
}

std::uint64_t CoreStore::unpin(std::uint32_t namespace_index, const KeyArray& keys) {
  const auto copied = keys_of(keys);
  return value_or_throw(run([&](Store& store) { return store.unpin(namespace_index, copied); }));
}

std::uint64_t CoreStore::erase_where(const py::bytes& namespace_id,
                                     std::vector<std::uint32_t> segment_ids) {
  EraseFilter filter{std::nullopt, std::move(segment_ids)};
  if (py::len(namespace_id) > 0) filter.namespace_id = digest_of(namespace_id);
  return value_or_throw(run([&](Store& store) { return store.erase_where(filter); }));
}

py::tuple CoreStore::flush(double timeout_s) {
  const auto flushed =
      value_or_throw(run([&](Store& store) { return store.flush(ns_from_s(timeout_s)); }));
  return py::make_tuple(flushed.durable_blocks, flushed.not_kept_blocks);
}

py::dict CoreStore::clear(bool host, bool disk) {
  const auto cleared = value_or_throw(run([&](Store& store) { return store.clear(host, disk); }));
  py::dict tiers;
  tiers["host"] = dict_of(cleared.host);
  tiers["disk"] = dict_of(cleared.disk);
  return tiers;
}

py::dict CoreStore::stats() {
  py::dict fields = bindings::dict_of(run([](Store& store) { return store.stats(); }));
  if (fields.contains("host") && !fields["host"].is_none()) add_page_locks(fields["host"]);
  return fields;
}

py::list CoreStore::holders(std::size_t num_max) {
  py::list listed;
  for (const Holder& it : run([&](Store& store) { return store.holders(num_max); })) {
    listed.append(py::make_tuple(
        it.kind,
        py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
            it.owner.data(), static_cast<Py_ssize_t>(it.owner.size()), "replace")),
        it.id, it.num_blocks, it.num_bytes, seconds_of(it.since_ns), seconds_of(it.until_ns)));
  }
  return listed;
}

void CoreStore::close(double timeout_s) {
  if (is_closed_) return;
  plans_->close();
  const Status status = run([&](Store& store) { return store.close(ns_from_s(timeout_s)); });
  is_closed_ = true;
  wait_for_calls();
  plans_->forget_all();
  close_devices(timeout_s);
  stop_sharing();
  deliver_log();
  throw_if_error(status);
}

void CoreStore::wait_for_calls() {
  // Closing made their calls end. At exit the interpreter kills threads that ask for the GIL later,
  // and a thread that dies inside of a call takes the process with it.
  constexpr std::chrono::seconds kPatience(1);
  const py::gil_scoped_release release;
  std::unique_lock<std::mutex> lock(calls_mutex_);
  calls_changed_.wait_for(lock, kPatience, [this] { return num_calls_ == 0; });
}

void CoreStore::abandon_after_fork() {
  if (!store_) return;
  store_->abandon_after_fork();
  // Never destroyed here: its threads are in the parent, and waiting for them would take for ever.
  static_cast<void>(new std::shared_ptr<Store>(std::move(store_)));
  store_.reset();
  for (auto& [ordinal, device] : devices_) {
    static_cast<void>(new std::shared_ptr<paged::PagedDevice>(device));
  }
  // Its thread is in the parent; nobody shall wait for an answer here.
  if (arena_server_) arena_server_->close_after_fork();
  is_closed_ = true;
  is_forked_ = true;
}

}  // namespace kvtier::bindings
