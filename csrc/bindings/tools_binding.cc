// Binds what the command line and tests use beside a store. Blocking calls release the GIL.
#include <pybind11/stl.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/usable_cpus.h"
#include "bindings/array_arguments.h"
#include "bindings/bindings.h"
#include "bindings/errors_binding.h"
#include "bindings/path_argument.h"
#include "disk/directory_inspector.h"
#include "disk/directory_probe.h"
#include "disk/live_file_access.h"
#include "io/directory.h"
#include "io/threads_io_engine.h"
#include "memory/numa_policy.h"

namespace kvtier::bindings {
namespace {

namespace py = pybind11;

// Opens the directory of `path` (text, bytes or os.PathLike) and calls without the GIL.
template <typename Call>
auto on_directory(const py::object& path, const Call& call) {
  const std::string name = native_path_of(path);
  auto result = [&]() -> decltype(call(std::declval<Directory&>())) {
    const py::gil_scoped_release release;
    auto opened = open_posix_directory(name);
    if (!opened.is_ok()) return opened.status();
    return call(*opened.value());
  }();
  return value_or_throw(std::move(result), CallKind::kSetUp);
}

std::uint64_t checksum_of(const py::bytes& data, const py::bytes& key,
                          const py::bytes& namespace_id, std::uint32_t part_index) {
  const std::string_view text = data;
  const ChecksumSeed seed{digest_of(key), digest_of(namespace_id), part_index};
  const py::gil_scoped_release release;
  return checksum_part(std::as_bytes(std::span(text.data(), text.size())), seed);
}

// The least that a verified delivery costs: each block is hashed, then copied. Without a target it
// is what a promotion costs. Returns the XOR of the checksums, so that nothing is optimised away.
std::uint64_t checksum_and_copy(const py::buffer& source, const std::optional<py::buffer>& target,
                                std::uint64_t block_bytes) {
  const py::buffer_info from = source.request();
  const auto num_bytes = static_cast<std::uint64_t>(from.size * from.itemsize);
  std::byte* copied = nullptr;
  std::uint64_t target_bytes = num_bytes;
  if (target) {
    const py::buffer_info to = target->request(/*writable=*/true);
    copied = static_cast<std::byte*>(to.ptr);
    target_bytes = static_cast<std::uint64_t>(to.size * to.itemsize);
  }
  if (block_bytes == 0 || num_bytes % block_bytes != 0 || target_bytes != num_bytes) {
    throw_if_error(
        Status(StatusCode::kInvalidArgument,
               "cannot copy: equal lengths of whole blocks are needed: source_bytes=" +
                   std::to_string(num_bytes) + " target_bytes=" + std::to_string(target_bytes) +
                   " block_bytes=" + std::to_string(block_bytes)),
        CallKind::kSetUp);
  }
  const auto* bytes = static_cast<const std::byte*>(from.ptr);
  const py::gil_scoped_release release;
  std::uint64_t combined = 0;
  for (std::uint64_t offset = 0; offset < num_bytes; offset += block_bytes) {
    combined ^= checksum_part(std::span(bytes + offset, block_bytes), ChecksumSeed{});
    if (copied != nullptr) std::memcpy(copied + offset, bytes + offset, block_bytes);
  }
  return combined;
}

py::dict dict_of(const disk::NamespaceContents& contents) {
  py::dict fields;
  fields["index"] = contents.namespace_index;
  fields["id"] = contents.id.to_hex();
  fields["description"] = contents.description;
  fields["num_blocks"] = contents.num_blocks;
  fields["num_pinned"] = contents.num_pinned;
  fields["payload_bytes"] = contents.payload_bytes;
  fields["num_chains"] = contents.num_chains;
  fields["chain_blocks_max"] = contents.chain_blocks_max;
  fields["segments"] = contents.segments;
  return fields;
}

py::dict dict_of(const disk::SegmentContents& contents) {
  py::dict fields;
  fields["name"] = contents.name;
  fields["slot_bytes"] = contents.slot_bytes;
  fields["num_slots"] = contents.num_slots;
  fields["num_used"] = contents.num_used;
  fields["num_damaged"] = contents.num_damaged;
  fields["file_bytes"] = contents.file_bytes;
  fields["allocated_bytes"] = contents.allocated_bytes;
  return fields;
}

py::dict dict_of(const disk::DamagedBlock& block) {
  py::dict fields;
  fields["segment"] = block.segment;
  fields["slot"] = block.slot_index;
  fields["key"] = block.key.to_hex();
  fields["namespace_id"] = block.namespace_id.to_hex();
  fields["reason"] = block.reason;
  return fields;
}

template <typename Item>
py::list list_of(const std::vector<Item>& items) {
  py::list listed;
  for (const Item& item : items) listed.append(dict_of(item));
  return listed;
}

py::dict probe_numa_dict() {
  const NumaProbe probe = probe_numa(real_numa_system());
  py::dict fields;
  fields["nodes"] = numa_nodes_text(probe.nodes);
  fields["text"] = probe.text;
  fields["refusal"] = probe.refusal;
  return fields;
}

py::dict inspect(const py::object& path, bool has_chains) {
  const auto depth = has_chains ? disk::InspectDepth::kChains : disk::InspectDepth::kCounts;
  const auto contents = on_directory(
      path, [depth](Directory& directory) { return disk::inspect_directory(directory, depth); });
  py::dict fields;
  fields["store_id"] = contents.store_id.to_hex();
  fields["is_clean"] = contents.is_clean;
  fields["namespaces"] = list_of(contents.namespaces);
  fields["segments"] = list_of(contents.segments);
  fields["unknown_files"] = contents.unknown_files;
  return fields;
}

py::dict verify(const py::object& path, const py::object& report, std::uint64_t bytes_per_s_max) {
  disk::VerifyProgress progress;
  if (!report.is_none()) {
    // Called from this very thread, which holds the GIL again meanwhile.
    progress = [&](std::uint64_t num_done, std::uint64_t num_blocks) {
      const py::gil_scoped_acquire acquire;
      report(num_done, num_blocks);
    };
  }
  const auto verified = on_directory(path, [&](Directory& directory) {
    return disk::verify_directory(directory, progress, bytes_per_s_max);
  });
  py::dict fields;
  fields["is_clean"] = verified.is_clean;
  fields["blocks"] = verified.num_blocks;
  fields["bytes"] = verified.payload_bytes;
  fields["num_corrupt"] = verified.num_corrupt;
  fields["num_torn"] = verified.num_torn;
  fields["damaged_entries"] = verified.num_damaged_entries;
  fields["unreadable"] = verified.num_unreadable;
  fields["damaged"] = list_of(verified.damaged);
  fields["unknown_files"] = verified.unknown_files;
  return fields;
}

py::dict probe(const py::object& path, std::uint64_t probe_bytes) {
  SystemClock clock;
  const auto probed = on_directory(path, [&](Directory& directory) {
    return disk::probe_directory(directory, clock, probe_bytes);
  });
  py::dict fields;
  fields["is_writable"] = probed.is_writable;
  fields["write_error"] = probed.write_error;
  fields["file_system"] = probed.file_system;
  fields["file_system_block_bytes"] = probed.file_system_block_bytes;
  fields["direct_alignment_memory_bytes"] = probed.direct_alignment.memory_bytes;
  fields["direct_alignment_offset_bytes"] = probed.direct_alignment.offset_bytes;
  fields["is_alignment_reported"] = probed.direct_alignment.is_reported;
  fields["direct_write_error"] = probed.direct_write_error;
  fields["fallocate_error"] = probed.fallocate_error;
  fields["free_bytes"] = probed.free_bytes;
  fields["read_gb_per_s"] = probed.read_gb_per_s;
  fields["write_gb_per_s"] = probed.write_gb_per_s;
  return fields;
}

/// None: there is none.
std::optional<std::string> read_live(const py::object& path) {
  const std::string name = native_path_of(path);
  auto text = [&name] {
    const py::gil_scoped_release release;
    return disk::read_live_file(name);
  }();
  if (text.status().code() == StatusCode::kNotFound) return std::nullopt;
  return value_or_throw(std::move(text));
}

std::vector<std::pair<std::string, std::uint64_t>> pairs_of(
    const std::vector<disk::OwnFile>& files) {
  std::vector<std::pair<std::string, std::uint64_t>> pairs;
  for (const disk::OwnFile& file : files) pairs.emplace_back(file.name, file.allocated_bytes);
  return pairs;
}

}  // namespace

void bind_tools(py::module_& module) {
  module.def("checksum_part", &checksum_of, py::arg("data"), py::arg("key"),
             py::arg("namespace_id"), py::arg("part_index"));
  module.def("checksum_and_copy", &checksum_and_copy, py::arg("source"),
             py::arg("target").none(true), py::arg("block_bytes"));
  module.def("is_key_array", &is_key_array, py::arg("keys"));
  module.def("checksum_path_name", &checksum_path_name);
  module.def("choose_num_io_threads", [] { return choose_num_io_threads(usable_cpus()); });
  module.def("probe_numa", &probe_numa_dict);
  module.def("inspect_directory", &inspect, py::arg("path"), py::arg("chains") = false);
  module.def("read_live_file", &read_live, py::arg("path"));
  module.def("verify_directory", &verify, py::arg("path"), py::arg("report"),
             py::arg("bytes_per_s_max") = 0);
  module.def("probe_directory", &probe, py::arg("path"), py::arg("probe_bytes"));
  module.def(
      "list_own_files",
      [](const py::object& path) { return pairs_of(on_directory(path, disk::list_own_files)); },
      py::arg("path"));
  module.def(
      "wipe_directory",
      [](const py::object& path) { return pairs_of(on_directory(path, disk::wipe_directory)); },
      py::arg("path"));
}

}  // namespace kvtier::bindings
