// The whole store on machines with several NUMA nodes.
#include <algorithm>

#include "memory/numa_machine.h"
#include "memory/resident.h"
#include "store_world.h"

using namespace kvtier;
using namespace kvtier::testing;

namespace {

constexpr std::uint64_t kBlockBytes = 64 << 10;

std::size_t count_warnings(const StoreWorld& world) {
  return static_cast<std::size_t>(
      std::count_if(world.log.begin(), world.log.end(), [](const std::string& line) {
        return line.starts_with("warning: ") && line.find("NUMA") != std::string::npos;
      }));
}

void check_blocks(StoreWorld& world) {
  const auto space = world.add_namespace(kBlockBytes);
  CHECK(count_done(world.put(space, 0, 8, kBlockBytes)) == 8);
  CHECK(count_done(world.get(space, 0, 8, kBlockBytes)) == 8);
}

}  // namespace

TEST_CASE("F9: a store spreads its host memory and its staging buffers over the nodes") {
  for (const bool is_shared : {false, true}) {
    NumaMachine machine;
    machine.add_nodes("0-1");
    StoreWorld world;
    world.numa = machine.system();
    world.options.is_arena_shared = is_shared;
    REQUIRE(world.open().is_ok());
    REQUIRE(machine.calls.size() == 2);
    const auto memory = world.store->host_memory().value();
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(machine.calls[i].memory == memory[i].bytes.data());
      CHECK(machine.calls[i].num_bytes == memory[i].bytes.size());
    }
    CHECK(world.store->stats().host.mode_numa == "interleave 0-1");
    CHECK(count_warnings(world) == 0);
    check_blocks(world);
  }
}

TEST_CASE("F9: a store whose kernel refuses mbind works and says so once") {
  for (const int refusal : {EPERM, ENOSYS}) {
    NumaMachine machine;
    machine.add_nodes("0-1");
    machine.refusal = refusal;
    StoreWorld world;
    world.numa = machine.system();
    REQUIRE(world.open().is_ok());
    const std::string errno_text = "(errno=" + std::to_string(refusal) + ")";
    const std::string text = world.store->stats().host.mode_numa;
    CHECK(text.starts_with("refused: mbind: "));
    CHECK(text.ends_with(errno_text));
    check_blocks(world);
    REQUIRE(world.store->place_near(NumaMachine::kGpu).is_ok());
    CHECK(count_warnings(world) == 1);
  }
}

TEST_CASE("F9: the first GPU draws what is not taken yet to its node") {
  NumaMachine machine;
  machine.add_nodes("0-1");
  machine.add_gpu("1");
  StoreWorld world;
  world.numa = machine.system();
  REQUIRE(world.open().is_ok());
  check_blocks(world);
  REQUIRE(world.store->place_near(NumaMachine::kGpu).is_ok());
  CHECK(machine.calls.size() == 4);
  CHECK(world.store->stats().host.mode_numa == "prefer 1");
  CHECK(std::count(world.log.begin(), world.log.end(),
                   "info: host memory that is taken from now on lies next to the first GPU: "
                   "numa=prefer 1") == 1);
  REQUIRE(world.store->place_near(NumaMachine::kGpu).is_ok());
  CHECK(machine.calls.size() == 4);
  REQUIRE(world.store->close(kNsPerS).is_ok());
  CHECK(world.store->place_near(NumaMachine::kGpu).code() == StatusCode::kClosed);
}

TEST_CASE("F9: nodes that are not there end the open") {
  NumaMachine machine;
  machine.add_nodes("0-1");
  StoreWorld world;
  world.numa = machine.system();
  world.options.numa = parse_numa_options("1-2").value();
  const Status refused = world.open();
  CHECK(refused.code() == StatusCode::kConfig);
  CHECK(refused.message().find("numa=1-2 ") != std::string::npos);
  CHECK(refused.message().find("nodes 0-1;") != std::string::npos);
  world.options.numa = parse_numa_options("1").value();
  REQUIRE(world.open().is_ok());
  CHECK(world.store->stats().host.mode_numa == "prefer 1");
}

TEST_CASE("F9: no memory is provided ahead before the first GPU was seen, of one node at once") {
  if (!can_populate()) return;
  for (const char* nodes : {"0-1", "0"}) {
    NumaMachine machine;
    machine.add_nodes(nodes);
    machine.add_gpu("0");
    StoreWorld world;
    world.numa = machine.system();
    world.options.prefault_bytes = 8 << 20;
    REQUIRE(world.open().is_ok());
    const auto memory = world.store->host_memory().value();
    const std::span<std::byte> host = memory.front().bytes;
    run_for_ns(*world.executor, kNsPerMs);
    const bool is_drawn = std::string(nodes) == "0-1";
    CHECK(resident_bytes(host) == (is_drawn ? 0 : host.size() / 4));
    REQUIRE(world.store->place_near("").is_ok());  // A CPU's memory draws nothing.
    run_for_ns(*world.executor, kNsPerMs);
    CHECK(resident_bytes(host) == (is_drawn ? 0 : host.size() / 4));
    REQUIRE(world.store->place_near(NumaMachine::kGpu).is_ok());
    run_for_ns(*world.executor, kNsPerMs);
    CHECK(resident_bytes(host) == host.size() / 4);
  }
}
