// NUMA nodes of this machine, and the kernel's way to write lists of them. Free functions without
// state; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvtier {

/// Numbers of nodes, ascending, each once.
using NumaNodes = std::vector<std::uint32_t>;

/// Kernels have no more.
inline constexpr std::uint32_t kNumaNodesMax = 1024;

struct NumaNode {
  std::uint32_t node_index = 0;
  std::uint64_t memory_bytes = 0;
  bool has_cpus = true;  // Memory of expanders and of some GPUs is a node without.
};

/// Nodes of a list such as "0-1,3"; none of an empty text. kInvalidArgument names the text.
Result<NumaNodes> parse_numa_nodes(std::string_view text);
/// The opposite: "0-1,3".
std::string numa_nodes_text(const NumaNodes& nodes);

/// Nodes with memory that this process may use, ascending; empty when the system does not tell.
/// root: put before every path that is read, so that tests can bring their own tree.
std::vector<NumaNode> read_usable_nodes(const std::string& root);

/// The node that a PCI device ("0000:3b:00.0") is next to; nothing when the system does not tell.
std::optional<std::uint32_t> read_device_node(const std::string& root,
                                              const std::string& pci_address);

}  // namespace kvtier
