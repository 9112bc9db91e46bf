// Needs the GIL.
#include "bindings/transfer_options_binding.h"

#include "bindings/errors_binding.h"
#include "bindings/path_argument.h"

namespace kvtier::bindings {

namespace py = pybind11;

using transfer::TransferDirection;
using transfer::TransferMethod;
using transfer::TransferOptions;

const std::map<std::string, TransferDirection>& transfer_directions() {
  static const std::map<std::string, TransferDirection> directions = {
      {"save", TransferDirection::kSave}, {"load", TransferDirection::kLoad}};
  return directions;
}

const std::map<std::string, TransferMethod>& transfer_methods() {
  static const std::map<std::string, TransferMethod> methods = {
      {"copy_engine", TransferMethod::kCopyEngine},
      {"staged", TransferMethod::kStaged},
      {"zero_copy", TransferMethod::kZeroCopy},
      {"auto", TransferMethod::kAuto}};
  return methods;
}

TransferOptions transfer_options_of(const py::dict& fields) {
  TransferOptions options;
  for (const auto& [key, value] : fields) {
    const auto name = key.cast<std::string>();
    if (name == "max_ctas") {
      options.max_ctas = value.cast<std::uint32_t>();
    } else if (name == "are_saves_gentle") {
      options.are_saves_gentle = value.cast<bool>();
    } else if (name == "chunk_bytes") {
      options.chunk_bytes = value.cast<std::uint64_t>();
    } else if (name == "calibration_path") {
      options.calibration_path = native_path_of(value);
    } else if (name == "is_calibrated") {
      options.is_calibrated = value.cast<bool>();
    } else if (name == "num_jobs_max") {
      options.num_jobs_max = value.cast<std::uint32_t>();
    } else {
      throw_if_error(Status(StatusCode::kConfig, "unknown option: " + name), CallKind::kSetUp);
    }
  }
  return options;
}

py::dict dict_of(const transfer::TransferStats& stats) {
  py::dict fields;
  for (const auto& [direction, direction_value] : transfer_directions()) {
    for (const auto& [method, method_value] : transfer_methods()) {
      if (method_value == TransferMethod::kAuto) continue;
      const auto row = static_cast<std::size_t>(direction_value);
      const auto column = static_cast<std::size_t>(method_value);
      fields[py::str(direction + "_" + method + "_jobs")] = stats.jobs[row][column];
      fields[py::str(direction + "_" + method + "_bytes")] = stats.moved_bytes[row][column];
    }
  }
  fields["failed_jobs"] = stats.failed_jobs;
  fields["cancelled_jobs"] = stats.cancelled_jobs;
  fields["corrupt_blocks"] = stats.corrupt_blocks;
  fields["num_chunks"] = stats.num_chunks;
  fields["submit_ns"] = stats.submit_ns;
  fields["staging_bytes"] = stats.staging_bytes;
  fields["page_locked_bytes"] = stats.page_locked_bytes;
  return fields;
}

}  // namespace kvtier::bindings
