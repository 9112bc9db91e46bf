// Binds the transfer engine as kvtier._core.TransferEngine, for measurements. Addresses are
// numbers, and whoever passes them answers for them.
#include <pybind11/stl.h>

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/array_arguments.h"
#include "bindings/bindings.h"
#include "bindings/core_device.h"
#include "bindings/transfer_options_binding.h"
#include "transfer/transfer_engine.h"

namespace kvtier::bindings {
namespace {

namespace py = pybind11;

using namespace transfer;

template <typename Value>
Value value_of(const std::map<std::string, Value>& known, const char* name,
               const std::string& word) {
  const auto found = known.find(word);
  if (found != known.end()) return found->second;
  throw_if_error(
      Status(StatusCode::kInvalidArgument, std::string(name) + ": unknown word: " + word));
  return {};
}

py::dict dict_of(const TransferResult& result) {
  py::dict fields;
  fields["job_id"] = result.job_id;
  fields["direction"] = result.direction == TransferDirection::kSave ? "save" : "load";
  fields["error"] = result.status.is_ok() ? py::object(py::none())
                                          : py::object(py::str(result.status.to_string()));
  fields["checksums"] =
      AddressArray(static_cast<py::ssize_t>(result.checksums.size()), result.checksums.data());
  fields["undefined_block_ids"] = result.undefined_block_ids;
  fields["method"] = method_name(result.method);
  fields["moved_bytes"] = result.moved_bytes;
  fields["device_s"] = static_cast<double>(result.device_ns) / static_cast<double>(kNsPerS);
  return fields;
}

class CoreTransfer {
 public:
  CoreTransfer(std::shared_ptr<CoreDevice> device, const py::dict& options)
      : device_(std::move(device)) {
    const TransferOptions parsed = transfer_options_of(options);
    engine_ = run_on_device(
        [&] { return TransferEngine::create(device_->use(), device_->clock(), parsed); });
  }
  ~CoreTransfer() {
    // In the child of a fork there is no thread that could be waited for.
    if (device_->is_forked()) {
      static_cast<void>(engine_.release());
      return;
    }
    const py::gil_scoped_release release;
    engine_.reset();
  }
  CoreTransfer(const CoreTransfer&) = delete;
  CoreTransfer& operator=(const CoreTransfer&) = delete;

  AttachmentId attach(const std::vector<TensorPair>& tensors,
                      const std::vector<FragmentFields>& fragments,
                      const std::vector<std::uint64_t>& part_bytes) {
    const auto places = places_of(tensors);
    const auto pieces = fragments_of(fragments);
    return run_on_device([&] { return use().attach(places, pieces, part_bytes); });
  }
  void detach(AttachmentId attachment_id) {
    run_on_device([&] { return use().detach(attachment_id); });
  }

  TransferJobId submit(const std::string& direction, AttachmentId attachment_id,
                       const IdArray& block_ids, const AddressArray& slots, std::uint64_t stream_id,
                       const std::string& method, const std::optional<KeyArray>& keys,
                       const AddressArray& checksums) {
    const auto num_blocks = static_cast<std::size_t>(block_ids.size());
    const std::vector<std::byte*> pointers = pointers_of(slots, num_blocks);
    std::vector<ChecksumSeed> seeds;
    if (keys) {
      for (const BlockKey& key : key_span_of(*keys)) seeds.push_back({key, {}, 0});
    }
    TransferRequest request;
    request.direction = value_of(transfer_directions(), "direction", direction);
    request.attachment_id = attachment_id;
    request.block_ids = {block_ids.data(), num_blocks};
    request.slots = pointers;
    request.stream = {stream_id};
    request.seeds = seeds;
    request.checksums = {checksums.data(), static_cast<std::size_t>(checksums.size())};
    request.method = value_of(transfer_methods(), "method", method);
    return run_on_device([&] { return use().submit(request); });
  }

  void cancel(TransferJobId job_id) { use().cancel(job_id); }
  bool wait(TransferJobId job_id, double timeout_s) {
    TransferEngine& engine = use();
    const py::gil_scoped_release release;
    return engine.wait(job_id, device_->deadline_ns(timeout_s));
  }
  void order_stream_after(TransferJobId job_id, std::uint64_t stream_id, double timeout_s) {
    run_on_device([&] {
      return use().order_stream_after(job_id, {stream_id}, device_->deadline_ns(timeout_s));
    });
  }
  py::list poll() {
    std::vector<TransferResult> results;
    use().poll(results);
    py::list listed;
    for (const TransferResult& result : results) listed.append(dict_of(result));
    return listed;
  }
  py::dict take(TransferJobId job_id) {
    return dict_of(run_on_device([&] { return use().take(job_id); }));
  }
  bool close(double timeout_s) {
    TransferEngine& engine = use();
    const py::gil_scoped_release release;
    return engine.close(device_->deadline_ns(timeout_s));
  }

  void add_host_memory(std::uint64_t address, std::uint64_t length_bytes) {
    run_on_device([&] { return use().add_host_memory({pointer_of(address), length_bytes}); });
  }
  void add_page_locked_memory(std::uint64_t address, std::uint64_t length_bytes) {
    use().add_page_locked_memory({pointer_of(address), length_bytes});
  }
  void remove_host_memory(std::uint64_t address, std::uint64_t length_bytes) {
    TransferEngine& engine = use();
    const py::gil_scoped_release release;
    engine.remove_host_memory({pointer_of(address), length_bytes});
  }

  py::dict stats() { return bindings::dict_of(use().stats()); }
  std::string note() { return use().note(); }

 private:
  TransferEngine& use() {
    if (device_->is_forked()) throw_closed();
    return *engine_;
  }

  // Constant after construction; what they point to is thread-safe.
  const std::shared_ptr<CoreDevice> device_;
  std::unique_ptr<TransferEngine> engine_;
};

}  // namespace

void bind_transfer(py::module_& module) {
  py::class_<CoreTransfer> engine(module, "TransferEngine");
  engine.def(py::init<std::shared_ptr<CoreDevice>, const py::dict&>(), py::arg("device"),
             py::arg("options"));
  engine.def("attach", &CoreTransfer::attach, py::arg("tensors"), py::arg("fragments"),
             py::arg("part_bytes"));
  engine.def("detach", &CoreTransfer::detach, py::arg("attachment_id"));
  engine.def("submit", &CoreTransfer::submit, py::arg("direction"), py::arg("attachment_id"),
             py::arg("block_ids").noconvert(), py::arg("slots").noconvert(), py::arg("stream_id"),
             py::arg("method"), py::arg("keys").noconvert().none(true),
             py::arg("checksums").noconvert());
  engine.def("cancel", &CoreTransfer::cancel, py::arg("job_id"));
  engine.def("wait", &CoreTransfer::wait, py::arg("job_id"), py::arg("timeout_s"));
  engine.def("order_stream_after", &CoreTransfer::order_stream_after, py::arg("job_id"),
             py::arg("stream_id"), py::arg("timeout_s"));
  engine.def("poll", &CoreTransfer::poll);
  engine.def("take", &CoreTransfer::take, py::arg("job_id"));
  engine.def("close", &CoreTransfer::close, py::arg("timeout_s"));
  engine.def("add_host_memory", &CoreTransfer::add_host_memory, py::arg("address"),
             py::arg("length_bytes"));
  engine.def("add_page_locked_memory", &CoreTransfer::add_page_locked_memory, py::arg("address"),
             py::arg("length_bytes"));
  engine.def("remove_host_memory", &CoreTransfer::remove_host_memory, py::arg("address"),
             py::arg("length_bytes"));
  engine.def("stats", &CoreTransfer::stats);
  engine.def("note", &CoreTransfer::note);
}

}  // namespace kvtier::bindings
