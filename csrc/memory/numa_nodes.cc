// Nodes from sysfs and the process's own limits (Linux). Thread-safe.
#include "memory/numa_nodes.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

namespace kvtier {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\n";
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

std::optional<std::uint32_t> node_of(std::string_view text) {
  const std::string_view digits = trimmed(text);
  std::uint32_t node_index = 0;
  const char* end = digits.data() + digits.size();
  const auto [rest, error] = std::from_chars(digits.data(), end, node_index);
  if (digits.empty() || error != std::errc{} || rest != end) return std::nullopt;
  if (node_index >= kNumaNodesMax) return std::nullopt;
  return node_index;
}

/// Adds "3" or "0-1" to `nodes`; whether it is one of them.
bool add_range(std::string_view text, NumaNodes& nodes) {
  const std::size_t dash = text.find('-');
  const auto first = node_of(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : node_of(text.substr(dash + 1));
  if (!first || !last || *first > *last) return false;
  for (std::uint32_t node_index = *first; node_index <= *last; ++node_index) {
    nodes.push_back(node_index);
  }
  return true;
}

/// What follows `label` in the first line that holds it.
std::optional<std::string> find_line(const std::string& path, const std::string& label) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t at = line.find(label);
    if (at != std::string::npos) return line.substr(at + label.size());
  }
  return std::nullopt;
}

std::optional<NumaNodes> read_list(const std::string& path) {
  const auto line = find_line(path, "");
  if (!line) return std::nullopt;
  auto nodes = parse_numa_nodes(*line);
  if (!nodes.is_ok()) return std::nullopt;
  return std::move(nodes).value();
}

std::uint64_t memory_bytes_of(const std::string& folder) {
  std::istringstream rest(find_line(folder + "/meminfo", "MemTotal:").value_or("0"));
  std::uint64_t memory_kib = 0;
  rest >> memory_kib;
  return memory_kib * 1024;
}

bool has_node(const NumaNodes& nodes, std::uint32_t node_index) {
  return std::binary_search(nodes.begin(), nodes.end(), node_index);
}

}  // namespace

Result<NumaNodes> parse_numa_nodes(std::string_view text) {
  NumaNodes nodes;
  std::string_view rest = trimmed(text);
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const bool is_last = comma == std::string_view::npos;
    if (!add_range(rest.substr(0, comma), nodes) || (!is_last && comma + 1 == rest.size())) {
      return Status(StatusCode::kInvalidArgument,
                    "not a list of nodes such as 0 or 0-1,3: text=" + std::string(text));
    }
    rest = is_last ? std::string_view{} : rest.substr(comma + 1);
  }
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes;
}

std::string numa_nodes_text(const NumaNodes& nodes) {
  std::string text;
  for (std::size_t first = 0; first < nodes.size();) {
    std::size_t last = first;
    while (last + 1 < nodes.size() && nodes[last + 1] == nodes[last] + 1) ++last;
    if (!text.empty()) text += ",";
    text += std::to_string(nodes[first]);
    if (last > first) text += "-" + std::to_string(nodes[last]);
    first = last + 1;
  }
  return text;
}

std::vector<NumaNode> read_usable_nodes(const std::string& root) {
  const std::string folder = root + "/sys/devices/system/node";
  const auto online = read_list(folder + "/online");
  if (!online) return {};
  const auto with_cpus = read_list(folder + "/has_cpu");
  auto allowed = online;
  if (const auto line = find_line(root + "/proc/self/status", "Mems_allowed_list:")) {
    auto listed = parse_numa_nodes(*line);
    if (listed.is_ok()) allowed = std::move(listed).value();
  }
  std::vector<NumaNode> nodes;
  for (const std::uint32_t node_index : *online) {
    if (!has_node(*allowed, node_index)) continue;
    const auto memory_bytes = memory_bytes_of(folder + "/node" + std::to_string(node_index));
    if (memory_bytes == 0) continue;
    nodes.push_back({node_index, memory_bytes, !with_cpus || has_node(*with_cpus, node_index)});
  }
  return nodes;
}

std::optional<std::uint32_t> read_device_node(const std::string& root,
                                              const std::string& pci_address) {
  // "-1" where the firmware says nothing.
  const auto line = find_line(root + "/sys/bus/pci/devices/" + pci_address + "/numa_node", "");
  return line ? node_of(*line) : std::nullopt;
}

}  // namespace kvtier
