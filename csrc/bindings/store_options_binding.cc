// Reads StoreOptions from a dictionary. Needs the GIL.
#include "bindings/store_options_binding.h"

#include <map>
#include <string>

#include "bindings/errors_binding.h"
#include "bindings/path_argument.h"

namespace kvtier::bindings {
namespace {

namespace py = pybind11;

void config_error(const std::string& text) {
  throw_if_error(Status(StatusCode::kConfig, text), CallKind::kSetUp);
}

IoMode io_mode_of(const std::string& word) {
  static const std::map<std::string, IoMode> kModes = {
      {"auto", IoMode::kAuto}, {"uring", IoMode::kUring}, {"threads", IoMode::kThreads}};
  const auto found = kModes.find(word);
  if (found == kModes.end()) config_error("io: unknown word: " + word);
  return found->second;
}

DirectMode direct_mode_of(const std::string& word) {
  static const std::map<std::string, DirectMode> kModes = {
      {"auto", DirectMode::kAuto}, {"on", DirectMode::kOn}, {"off", DirectMode::kOff}};
  const auto found = kModes.find(word);
  if (found == kModes.end()) config_error("direct: unknown word: " + word);
  return found->second;
}

ThrottleOptions throttle_options_of(const py::dict& fields) {
  ThrottleOptions options;
  options.read_bytes_per_s = fields["read_bytes_per_s"].cast<std::uint64_t>();
  options.write_bytes_per_s = fields["write_bytes_per_s"].cast<std::uint64_t>();
  options.latency_ns = ns_from_s(fields["latency_s"].cast<double>());
  options.queue_depth_max = fields["queue_depth_max"].cast<std::uint32_t>();
  return options;
}

EvictionMode eviction_mode_of(const std::string& word) {
  static const std::map<std::string, EvictionMode> kModes = {{"adaptive", EvictionMode::kAdaptive},
                                                             {"lru", EvictionMode::kLru},
                                                             {"s3fifo", EvictionMode::kS3Fifo}};
  const auto found = kModes.find(word);
  if (found == kModes.end()) config_error("eviction: unknown word: " + word);
  return found->second;
}

using Setter = void (*)(StoreOptions& options, const py::handle& value);

template <auto kMember, typename Value>
void set(StoreOptions& options, const py::handle& value) {
  options.*kMember = value.cast<Value>();
}

template <TimeNs StoreOptions::* kMember>
void set_time(StoreOptions& options, const py::handle& value) {
  options.*kMember = ns_from_s(value.cast<double>());
}

const std::map<std::string, Setter>& setters() {
  static const std::map<std::string, Setter> kSetters = {
      {"path", [](StoreOptions& it, const py::handle& value) { it.path = native_path_of(value); }},
      {"host_bytes", set<&StoreOptions::host_bytes, std::uint64_t>},
      {"staging_bytes", set<&StoreOptions::staging_bytes, std::uint64_t>},
      {"prefault_bytes", set<&StoreOptions::prefault_bytes, std::uint64_t>},
      {"is_arena_shared", set<&StoreOptions::is_arena_shared, bool>},
      {"numa",
       [](StoreOptions& it, const py::handle& value) {
         it.numa = value_or_throw(parse_numa_options(value.cast<std::string>()), CallKind::kSetUp);
       }},
      {"disk_bytes", set<&StoreOptions::disk_bytes, std::uint64_t>},
      {"io", [](StoreOptions& it,
                const py::handle& value) { it.io = io_mode_of(value.cast<std::string>()); }},
      {"direct",
       [](StoreOptions& it, const py::handle& value) {
         it.direct = direct_mode_of(value.cast<std::string>());
       }},
      {"eviction",
       [](StoreOptions& it, const py::handle& value) {
         it.eviction = eviction_mode_of(value.cast<std::string>());
       }},
      {"num_io_threads", set<&StoreOptions::num_io_threads, std::uint32_t>},
      {"num_copy_threads", set<&StoreOptions::num_copy_threads, std::uint32_t>},
      {"has_checksum", set<&StoreOptions::has_checksum, bool>},
      {"is_deleted_on_exit", set<&StoreOptions::is_deleted_on_exit, bool>},
      {"blocks_max", set<&StoreOptions::blocks_max, std::uint64_t>},
      {"lock_wait_s", set_time<&StoreOptions::lock_wait_ns>},
      {"stall_s", set_time<&StoreOptions::stall_ns>},
      {"publish_interval_s", set_time<&StoreOptions::publish_interval_ns>},
      {"default_timeout_s", set_time<&StoreOptions::default_timeout_ns>},
      {"simulated_disk",
       [](StoreOptions& it, const py::handle& value) {
         it.simulated_disk = throttle_options_of(value.cast<py::dict>());
       }},
  };
  return kSetters;
}

}  // namespace

StoreOptions store_options_of(const py::dict& options) {
  StoreOptions parsed;
  for (const auto& [name, value] : options) {
    const auto found = setters().find(name.cast<std::string>());
    if (found == setters().end()) {
      config_error("unknown option: " + name.cast<std::string>());
      continue;
    }
    found->second(parsed, value);
  }
  return parsed;
}

}  // namespace kvtier::bindings
