// Lists of nodes, and invented machines that have them.
#include "memory/numa_nodes.h"

#include <doctest/doctest.h>

#include "numa_machine.h"

namespace kvtier::testing {
namespace {

NumaNodes indices_on(const NumaMachine& machine) {
  NumaNodes indices;
  for (const NumaNode& node : read_usable_nodes(machine.root())) indices.push_back(node.node_index);
  return indices;
}

TEST_CASE("lists of nodes are read as the kernel writes them, and written so") {
  CHECK(parse_numa_nodes("0").value() == NumaNodes{0});
  CHECK(parse_numa_nodes("0-1,3\n").value() == NumaNodes{0, 1, 3});
  CHECK(parse_numa_nodes(" 3, 0 - 1 ,1").value() == NumaNodes{0, 1, 3});
  CHECK(parse_numa_nodes("1023").value() == NumaNodes{1023});
  CHECK(parse_numa_nodes("").value().empty());
  CHECK(numa_nodes_text({}).empty());
  CHECK(numa_nodes_text({0}) == "0");
  CHECK(numa_nodes_text({0, 1, 2, 5, 7, 8}) == "0-2,5,7-8");
}

TEST_CASE("what is no list of nodes is refused by its text") {
  for (const char* text : {"x", "-1", "0-", "-", "1-0", "0,", ",0", "0,,1", "0 1", "0-1-2", "+1",
                           "1.5", "1024", "99999999999999999999"}) {
    const auto parsed = parse_numa_nodes(text);
    CAPTURE(text);
    REQUIRE_FALSE(parsed.is_ok());
    CHECK(parsed.status().code() == StatusCode::kInvalidArgument);
    CHECK(parsed.status().message().find(text) != std::string::npos);
  }
}

TEST_CASE("F9: nodes with memory that the process may use are found") {
  NumaMachine machine;
  CHECK(indices_on(machine).empty());
  machine.add_nodes("0-3");
  CHECK(indices_on(machine) == NumaNodes{0, 1, 2, 3});
  CHECK(read_usable_nodes(machine.root())[2].memory_bytes == 64ull << 30);
  CHECK(read_usable_nodes(machine.root())[2].has_cpus);
  // A container gets half of them.
  machine.allow("2-3");
  CHECK(indices_on(machine) == NumaNodes{2, 3});
  machine.write("sys/devices/system/node/node2/meminfo", "Node 2 MemTotal:       0 kB");
  CHECK(indices_on(machine) == NumaNodes{3});
  machine.write("sys/devices/system/node/has_cpu", "0-1");
  CHECK_FALSE(read_usable_nodes(machine.root())[0].has_cpus);
}

TEST_CASE("a damaged list is no list") {
  NumaMachine machine;
  machine.add_nodes("0-1");
  machine.allow("zero");
  CHECK(indices_on(machine) == NumaNodes{0, 1});
  machine.write("sys/devices/system/node/online", "0-");
  CHECK(indices_on(machine).empty());
}

TEST_CASE("a device names its node, or none") {
  NumaMachine machine;
  CHECK_FALSE(read_device_node(machine.root(), NumaMachine::kGpu).has_value());
  machine.add_gpu("-1");
  CHECK_FALSE(read_device_node(machine.root(), NumaMachine::kGpu).has_value());
  machine.add_gpu("1");
  CHECK(read_device_node(machine.root(), NumaMachine::kGpu) == 1);
}

TEST_CASE("this machine has a node, if it tells any") {
  const auto nodes = read_usable_nodes("");
  if (nodes.empty()) {
    MESSAGE("skipped: /sys/devices/system/node names no nodes here");
    return;
  }
  CHECK(nodes[0].memory_bytes > 0);
}

}  // namespace
}  // namespace kvtier::testing
