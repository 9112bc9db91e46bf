// Memory policies by the kernel's own calls: libnuma would be one more library to be missing.
// Thread safety: see the header.
#include "memory/numa_policy.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "memory/arena.h"

namespace kvtier {
namespace {

// Of linux/mempolicy.h.
constexpr int kPolicyDefault = 0;
constexpr int kPolicyPreferred = 1;
constexpr int kPolicyInterleave = 3;

constexpr std::size_t kWordBits = 8 * sizeof(unsigned long);
using NodeMask = std::array<unsigned long, kNumaNodesMax / kWordBits>;

NodeMask mask_of(const NumaNodes& nodes) {
  NodeMask mask{};
  for (const std::uint32_t node_index : nodes) {
    mask[node_index / kWordBits] |= 1ul << (node_index % kWordBits);
  }
  return mask;
}

NumaNodes indices_of(const std::vector<NumaNode>& nodes) {
  NumaNodes indices;
  for (const NumaNode& node : nodes) indices.push_back(node.node_index);
  return indices;
}

/// Memory without CPUs is slower than any node with some, or belongs to a GPU.
NumaNodes indices_with_cpus(const std::vector<NumaNode>& nodes) {
  NumaNodes indices;
  for (const NumaNode& node : nodes) {
    if (node.has_cpus) indices.push_back(node.node_index);
  }
  return indices.empty() ? indices_of(nodes) : indices;
}

Status check_nodes(const NumaNodes& asked, const std::vector<NumaNode>& usable) {
  const NumaNodes indices = indices_of(usable);
  if (std::includes(indices.begin(), indices.end(), asked.begin(), asked.end())) {
    return Status::ok();
  }
  const std::string known =
      indices.empty() ? "no node that the system names" : "nodes " + numa_nodes_text(indices);
  return Status(StatusCode::kConfig, "numa=" + numa_nodes_text(asked) +
                                         " names nodes that this process may not use: it has " +
                                         known + "; give some of these, auto, interleave or off");
}

}  // namespace

Result<NumaOptions> parse_numa_options(std::string_view text) {
  if (text == "auto") return NumaOptions{NumaMode::kAuto, {}};
  if (text == "off") return NumaOptions{NumaMode::kOff, {}};
  if (text == "interleave") return NumaOptions{NumaMode::kInterleave, {}};
  auto nodes = parse_numa_nodes(text);
  if (nodes.is_ok() && !nodes.value().empty()) {
    return NumaOptions{NumaMode::kNodes, std::move(nodes).value()};
  }
  return Status(
      StatusCode::kConfig,
      "numa: expected auto, off, interleave or nodes such as 0 or 0-1,3; got " + std::string(text));
}

NumaSystem real_numa_system() {
  NumaSystem system;
  system.mbind = [](void* memory, unsigned long num_bytes, int mode, const unsigned long* mask,
                    unsigned long mask_bits, unsigned flags) {
    return ::syscall(SYS_mbind, memory, num_bytes, mode, mask, mask_bits, flags);
  };
  system.get_mempolicy = [](int* mode) {
    return ::syscall(SYS_get_mempolicy, mode, nullptr, 0ul, nullptr, 0ul);
  };
  return system;
}

NumaProbe probe_numa(NumaSystem system) {
  auto policy = NumaPolicy::create({}, std::move(system));
  auto page = Arena::create(1);
  for (const Status& status : {policy.status(), page.status()}) {
    if (!status.is_ok()) return {{}, "unknown nodes", status.message()};
  }
  policy.value().place(page.value()->bytes(0, page.value()->num_bytes()));
  return {indices_of(policy.value().usable()), policy.value().text(), policy.value().refusal()};
}

Result<NumaPolicy> NumaPolicy::create(const NumaOptions& options, NumaSystem system) {
  NumaPolicy policy(std::move(system));
  if (options.mode == NumaMode::kOff) {
    policy.off_text_ = "off";
    return policy;
  }
  policy.usable_ = read_usable_nodes(policy.system_.root);
  if (options.mode == NumaMode::kNodes) {
    if (Status checked = check_nodes(options.nodes, policy.usable_); !checked.is_ok()) {
      return checked;
    }
  }
  policy.choose(options);
  return policy;
}

void NumaPolicy::choose(const NumaOptions& options) {
  const bool is_given = options.mode == NumaMode::kNodes;
  const NumaNodes nodes = is_given ? options.nodes : indices_with_cpus(usable_);
  // One node is where the kernel puts everything anyway. Of several, one may be asked for by name.
  if (usable_.size() <= 1 || (!is_given && nodes.size() <= 1)) {
    off_text_ = usable_.empty() ? "unknown nodes" : "one node";
    return;
  }
  int mode = kPolicyDefault;
  // Where a filter forbids to ask, the process has hardly been able to set one either.
  const bool is_known = system_.get_mempolicy(&mode) == 0;
  if (options.mode == NumaMode::kAuto && is_known && mode != kPolicyDefault) {
    off_text_ = "process policy";
    return;
  }
  nodes_ = nodes;
  is_near_allowed_ = options.mode == NumaMode::kAuto;
}

void NumaPolicy::place(std::span<std::byte> memory) {
  if (nodes_.empty() || memory.empty() || !refusal_.empty()) return;
  if (bind(memory, nodes_)) is_placed_ = true;
}

bool NumaPolicy::place_near(const std::string& pci_address,
                            std::span<const std::span<std::byte>> memories) {
  if (pci_address.empty() || !is_near_allowed_) return false;
  is_near_allowed_ = false;
  const auto near = read_device_node(system_.root, pci_address);
  if (!near || !is_placed_ || !refusal_.empty()) return false;
  const auto node = std::find_if(usable_.begin(), usable_.end(),
                                 [&](const NumaNode& it) { return it.node_index == *near; });
  std::uint64_t need_bytes = 0;
  for (const std::span<std::byte> memory : memories) need_bytes += memory.size();
  if (node == usable_.end() || !node->has_cpus ||
      static_cast<double>(need_bytes) > kNearShare * static_cast<double>(node->memory_bytes)) {
    return false;
  }
  for (const std::span<std::byte> memory : memories) {
    if (!memory.empty() && !bind(memory, {*near})) return false;
  }
  nodes_ = {*near};
  return true;
}

std::string NumaPolicy::text() const {
  if (nodes_.empty()) return off_text_;
  if (!is_placed_ && !refusal_.empty()) return "refused: " + refusal_;
  return (nodes_.size() == 1 ? "prefer " : "interleave ") + numa_nodes_text(nodes_);
}

// Neither policy is strict: where a node is full, pages come from another. Strict ones (MPOL_BIND)
// have the kernel kill processes then.
bool NumaPolicy::bind(std::span<std::byte> memory, const NumaNodes& nodes) {
  const NodeMask mask = mask_of(nodes);
  const int mode = nodes.size() == 1 ? kPolicyPreferred : kPolicyInterleave;
  // The kernel looks at one bit less than it is told of.
  const unsigned long mask_bits = kNumaNodesMax + 1;
  if (system_.mbind(memory.data(), memory.size(), mode, mask.data(), mask_bits, 0) == 0) {
    return true;
  }
  refusal_ =
      "mbind: " + std::generic_category().message(errno) + " (errno=" + std::to_string(errno) + ")";
  return false;
}

}  // namespace kvtier
