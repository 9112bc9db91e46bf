// Binds the simulated world, so that Python tests can drive the whole store from a seed. One
// thread.
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/core_store.h"
#include "bindings/errors_binding.h"
#include "testing/sim_world.h"

namespace kvtier::bindings {
namespace {

namespace py = pybind11;

testing::SimOptions sim_options(std::uint64_t seed, std::uint64_t capacity_bytes,
                                double bytes_per_s) {
  testing::SimOptions options;
  options.seed = seed;
  options.capacity_bytes = capacity_bytes;
  options.bytes_per_s = bytes_per_s;
  return options;
}

class SimWorld {
 public:
  SimWorld(std::uint64_t seed, std::uint64_t capacity_bytes, double bytes_per_s)
      : seed_(seed),
        clock_(std::make_shared<testing::SimClock>()),
        disk_(*clock_, sim_options(seed, capacity_bytes, bytes_per_s)) {}

  std::unique_ptr<CoreStore> open(const py::dict& options, py::object log) {
    return std::make_unique<CoreStore>(
        options, std::move(log),
        [this](const StoreOptions& parsed,
               std::function<void(const char*, const std::string&)> push) {
          return Store::open(parsed, make_seams(!parsed.path.empty(), std::move(push)));
        });
  }

  void crash(bool keeps_all) { disk_.crash(keeps_all); }
  void set_stalled(bool is_stalled) { disk_.set_stalled(is_stalled); }
  std::uint64_t allocated_bytes() const { return disk_.allocated_bytes(); }

  void set_fault(const std::string& name, double probability) {
    using testing::SimFaults;
    static const std::map<std::string, double SimFaults::*> kFaults = {
        {"read_error", &SimFaults::read_error},
        {"write_error", &SimFaults::write_error},
        {"read_flip", &SimFaults::read_flip},
        {"write_flip", &SimFaults::write_flip},
        {"misdirected_read", &SimFaults::misdirected_read},
        {"misdirected_write", &SimFaults::misdirected_write},
        {"short_transfer", &SimFaults::short_transfer},
        {"torn_write", &SimFaults::torn_write},
        {"sync_error", &SimFaults::sync_error},
        {"allocate_unsupported", &SimFaults::allocate_unsupported},
    };
    const auto found = kFaults.find(name);
    if (found == kFaults.end()) {
      throw_if_error(Status(StatusCode::kInvalidArgument, "unknown fault: " + name));
      return;
    }
    disk_.faults().*(found->second) = probability;
  }

  double now_s() const {
    return static_cast<double>(clock_->now_ns()) / static_cast<double>(kNsPerS);
  }

  void advance_s(double seconds) {
    clock_->advance_ns(ns_from_s(seconds));
    disk_.run_due();
  }

  std::vector<std::string> file_names() {
    std::vector<std::string> names;
    for (const auto& [name, bytes] : disk_.files()) names.push_back(name);
    return names;
  }

  py::bytes read_file(const std::string& name) {
    const auto& bytes = disk_.files().at(name);
    return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  void flip_bit(const std::string& name, std::uint64_t offset_bytes, unsigned bit_index) {
    disk_.files().at(name).at(offset_bytes) ^= static_cast<std::byte>(1u << (bit_index % 8));
  }

 private:
  StoreSeams make_seams(bool has_disk, std::function<void(const char*, const std::string&)> push) {
    StoreSeams seams;
    seams.clock = clock_;
    seams.executor = testing::make_sim_executor(*clock_, disk_, seed_);
    if (has_disk) {
      seams.directory = disk_.make_directory();
      seams.io_engine = disk_.make_io_engine();
    }
    seams.log = std::move(push);
    return seams;
  }

  const std::uint64_t seed_;
  const std::shared_ptr<testing::SimClock> clock_;
  testing::SimDisk disk_;
};

}  // namespace

void bind_sim(py::module_& module) {
  py::class_<SimWorld> world(module, "SimWorld");
  world.def(py::init<std::uint64_t, std::uint64_t, double>(), py::arg("seed"),
            py::arg("capacity_bytes"), py::arg("bytes_per_s") = testing::SimOptions().bytes_per_s);
  // The store's clock, executor and files are the world's.
  world.def("open", &SimWorld::open, py::arg("options"), py::arg("log"), py::keep_alive<0, 1>());
  world.def("crash", &SimWorld::crash, py::arg("keeps_all"));
  world.def("set_fault", &SimWorld::set_fault, py::arg("name"), py::arg("probability"));
  world.def("set_stalled", &SimWorld::set_stalled, py::arg("stalled"));
  world.def("now_s", &SimWorld::now_s);
  world.def("advance_s", &SimWorld::advance_s, py::arg("seconds"));
  world.def("file_names", &SimWorld::file_names);
  world.def("allocated_bytes", &SimWorld::allocated_bytes);
  world.def("read_file", &SimWorld::read_file, py::arg("name"));
  world.def("flip_bit", &SimWorld::flip_bit, py::arg("name"), py::arg("offset_bytes"),
            py::arg("bit_index"));
}

}  // namespace kvtier::bindings
