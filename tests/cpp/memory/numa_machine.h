// NumaMachine: an invented machine with NUMA nodes, whose kernel notes what it is asked and refuses
// on demand. One thread.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "memory/numa_policy.h"
#include "testing/temporary_folder.h"

namespace kvtier::testing {

class NumaMachine {
 public:
  struct Call {
    void* memory = nullptr;
    std::uint64_t num_bytes = 0;
    int mode = 0;
    std::uint64_t mask = 0;  // Of the first 64 nodes.
    unsigned flags = 0;
  };

  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_.path() + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }

  /// Nodes with `memory_bytes` each, all of them for this process.
  void add_nodes(const std::string& nodes, std::uint64_t memory_bytes = 64ull << 30) {
    write("sys/devices/system/node/online", nodes);
    const NumaNodes indices = parse_numa_nodes(nodes).value();
    for (const std::uint32_t node_index : indices) {
      const std::string number = std::to_string(node_index);
      write("sys/devices/system/node/node" + number + "/meminfo",
            "Node " + number + " MemTotal:       " + std::to_string(memory_bytes / 1024) +
                " kB\nNode " + number + " MemFree:        1000 kB");
    }
    allow(nodes);
  }
  void allow(const std::string& nodes) {
    write("proc/self/status", "Name:\tx\nMems_allowed:\t3\nMems_allowed_list:\t" + nodes);
  }
  void add_gpu(const std::string& node) {
    write("sys/bus/pci/devices/" + std::string(kGpu) + "/numa_node", node);
  }

  const std::string& root() const { return folder_.path(); }

  NumaSystem system() {
    NumaSystem made;
    made.root = root();
    made.get_mempolicy = [this](int* mode) {
      *mode = process_mode;
      return 0;
    };
    made.mbind = [this](void* memory, unsigned long num_bytes, int mode, const unsigned long* mask,
                        unsigned long, unsigned flags) -> long {
      calls.push_back({memory, num_bytes, mode, mask[0], flags});
      errno = refusal;
      return refusal == 0 ? 0 : -1;
    };
    return made;
  }

  static constexpr const char* kGpu = "0000:3b:00.0";
  static constexpr int kPreferred = 1;
  static constexpr int kInterleave = 3;
  std::vector<Call> calls;
  int refusal = 0;       // Of mbind.
  int process_mode = 0;  // MPOL_DEFAULT.

 private:
  TemporaryFolder folder_;
};

}  // namespace kvtier::testing
