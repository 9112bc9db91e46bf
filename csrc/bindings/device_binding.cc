// Binds devices as kvtier._core.TransferDevice, for measurements: memory, events, bare copies and
// the kernel. Addresses are numbers, and whoever passes them answers for them.
#include <pybind11/stl.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/array_arguments.h"
#include "bindings/bindings.h"
#include "bindings/core_device.h"
#include "device/cuda_device.h"
#include "device/host_device.h"

namespace kvtier::bindings {

namespace py = pybind11;

std::shared_ptr<CoreDevice> CoreDevice::open_host() {
  auto opened = std::make_shared<CoreDevice>();
  opened->device_ = std::make_unique<HostDevice>(opened->clock_);
  return opened;
}

std::shared_ptr<CoreDevice> CoreDevice::open_cuda(int ordinal) {
  auto opened = std::make_shared<CoreDevice>();
  opened->device_ = run_on_device([&] { return open_cuda_device(ordinal); });
  return opened;
}

namespace {

using Extent = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;

py::dict info(const CoreDevice& device) {
  const DeviceInfo found = device.use().info();
  py::dict fields;
  fields["name"] = found.name;
  fields["kind"] = found.kind == DeviceKind::kHost ? "host" : "cuda";
  fields["is_memory_unified"] = found.is_memory_unified;
  fields["has_kernels"] = found.has_kernels;
  fields["can_kernels_reach_host"] = found.can_kernels_reach_host;
  fields["identity"] = found.identity;
  fields["note"] = found.note;
  return fields;
}

std::uint64_t allocate(const CoreDevice& device, std::uint64_t length_bytes) {
  return address_of(run_on_device([&] { return device.use().allocate(length_bytes); }));
}

std::uint64_t allocate_page_locked(const CoreDevice& device, std::uint64_t length_bytes) {
  return address_of(run_on_device([&] { return device.use().allocate_page_locked(length_bytes); }));
}

void deallocate(const CoreDevice& device, std::uint64_t address) {
  const py::gil_scoped_release release;
  device.use().deallocate(pointer_of(address));
}

void deallocate_page_locked(const CoreDevice& device, std::uint64_t address) {
  const py::gil_scoped_release release;
  device.use().deallocate_page_locked(pointer_of(address));
}

void page_lock(const CoreDevice& device, std::uint64_t address, std::uint64_t length_bytes) {
  run_on_device([&] { return device.use().page_lock({pointer_of(address), length_bytes}); });
}

void page_unlock(const CoreDevice& device, std::uint64_t address) {
  const py::gil_scoped_release release;
  device.use().page_unlock(pointer_of(address));
}

std::uint64_t create_event(const CoreDevice& device) {
  return run_on_device([&] { return device.use().create_event(EventUse::kTiming); }).event_id;
}

// The host's device works in the threads that call it.
void wait_event(CoreDevice& device, std::uint64_t event_id, double timeout_s) {
  run_on_device([&] {
    device.use().progress();
    return device.use().wait_event({event_id}, device.deadline_ns(timeout_s));
  });
}

double elapsed_s(const CoreDevice& device, std::uint64_t begin_id, std::uint64_t end_id) {
  const TimeNs elapsed_ns =
      run_on_device([&] { return device.use().elapsed_ns({begin_id}, {end_id}); });
  return static_cast<double>(elapsed_ns) / static_cast<double>(kNsPerS);
}

std::uint32_t create_lane(const CoreDevice& device, bool is_load) {
  const LanePriority priority = is_load ? LanePriority::kLoad : LanePriority::kSave;
  return run_on_device([&] { return device.use().create_lane(priority); }).lane_index;
}

void submit_copies(const CoreDevice& device, std::uint32_t lane_index, const AddressArray& sources,
                   const AddressArray& targets, const AddressArray& lengths_bytes) {
  const auto num_pieces = static_cast<std::size_t>(sources.size());
  const std::vector<std::byte*> from = pointers_of(sources, num_pieces);
  const std::vector<std::byte*> to = pointers_of(targets, num_pieces);
  if (static_cast<std::size_t>(lengths_bytes.size()) != num_pieces) {
    throw_if_error(Status(StatusCode::kInvalidArgument, "lengths_bytes: one for each source"));
  }
  std::vector<CopyPiece> pieces(num_pieces);
  for (std::size_t index = 0; index < num_pieces; ++index) {
    pieces[index] = {from[index], to[index], lengths_bytes.data()[index]};
  }
  run_on_device([&] { return device.use().submit_copies({lane_index}, pieces); });
}

std::uint32_t create_fragment_table(const CoreDevice& device, const std::vector<Extent>& fragments,
                                    const std::vector<std::uint64_t>& part_bytes,
                                    std::uint64_t num_blocks) {
  std::vector<Fragment> placed;
  for (const auto& [address, stride_bytes, length_bytes] : fragments) {
    placed.push_back({pointer_of(address), stride_bytes, length_bytes});
  }
  return run_on_device([&]() -> Result<std::uint32_t> {
    auto table = FragmentTable::create(std::move(placed), part_bytes, num_blocks);
    if (!table.is_ok()) return table.status();
    return device.use().create_fragment_table(table.value());
  });
}

void submit_gather(const CoreDevice& device, std::uint32_t lane_index, std::uint32_t table_id,
                   const IdArray& block_ids, const AddressArray& targets, std::uint32_t num_leaves,
                   std::uint32_t num_ctas) {
  const auto num_blocks = static_cast<std::size_t>(block_ids.size());
  const std::vector<std::byte*> linear = pointers_of(targets, num_blocks);
  std::vector<BlockPlace> places(num_blocks);
  for (std::size_t index = 0; index < num_blocks; ++index) {
    places[index] = {block_ids.data()[index], linear[index]};
  }
  BlockCopy op;
  op.table_id = table_id;
  op.places = places;
  op.num_leaves = num_leaves;
  op.num_ctas = num_ctas;
  run_on_device([&] { return device.use().submit_block_copy({lane_index}, op); });
}

void bind_memory(py::class_<CoreDevice, std::shared_ptr<CoreDevice>>& device) {
  device.def("allocate", &allocate, py::arg("length_bytes"));
  device.def("deallocate", &deallocate, py::arg("address"));
  device.def("allocate_page_locked", &allocate_page_locked, py::arg("length_bytes"));
  device.def("deallocate_page_locked", &deallocate_page_locked, py::arg("address"));
  device.def("page_lock", &page_lock, py::arg("address"), py::arg("length_bytes"));
  device.def("page_unlock", &page_unlock, py::arg("address"));
}

void bind_work(py::class_<CoreDevice, std::shared_ptr<CoreDevice>>& device) {
  device.def("create_event", &create_event);
  device.def(
      "destroy_event",
      [](const CoreDevice& it, std::uint64_t event_id) { it.use().destroy_event({event_id}); },
      py::arg("event_id"));
  device.def("wait_event", &wait_event, py::arg("event_id"), py::arg("timeout_s"));
  device.def("elapsed_s", &elapsed_s, py::arg("begin_id"), py::arg("end_id"));
  device.def("create_lane", &create_lane, py::arg("is_load"));
  device.def(
      "destroy_lane",
      [](const CoreDevice& it, std::uint32_t lane_index) { it.use().destroy_lane({lane_index}); },
      py::arg("lane_index"));
  device.def(
      "record_lane",
      [](const CoreDevice& it, std::uint32_t lane_index, std::uint64_t event_id) {
        run_on_device([&] { return it.use().record_lane({lane_index}, {event_id}); });
      },
      py::arg("lane_index"), py::arg("event_id"));
  device.def("submit_copies", &submit_copies, py::arg("lane_index"), py::arg("sources").noconvert(),
             py::arg("targets").noconvert(), py::arg("lengths_bytes").noconvert());
  device.def("create_fragment_table", &create_fragment_table, py::arg("fragments"),
             py::arg("part_bytes"), py::arg("num_blocks"));
  device.def(
      "destroy_fragment_table",
      [](const CoreDevice& it, std::uint32_t table_id) {
        const py::gil_scoped_release release;
        it.use().destroy_fragment_table(table_id);
      },
      py::arg("table_id"));
  device.def("submit_gather", &submit_gather, py::arg("lane_index"), py::arg("table_id"),
             py::arg("block_ids").noconvert(), py::arg("targets").noconvert(),
             py::arg("num_leaves"), py::arg("num_ctas"));
}

}  // namespace

void bind_device(py::module_& module) {
  py::class_<CoreDevice, std::shared_ptr<CoreDevice>> device(module, "TransferDevice");
  device.def_static("host", &CoreDevice::open_host);
  device.def_static("cuda", &CoreDevice::open_cuda, py::arg("ordinal"));
  device.def("info", &info);
  bind_memory(device);
  bind_work(device);
}

}  // namespace kvtier::bindings
