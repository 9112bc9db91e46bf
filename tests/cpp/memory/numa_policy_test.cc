// Where memory is put on invented machines, and what is left when the kernel refuses.
#include "memory/numa_policy.h"

#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "memory/arena.h"
#include "numa_machine.h"

namespace kvtier::testing {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kGiB = 1u << 30;

/// Memory that is only spoken of.
std::span<std::byte> memory_of(std::uint64_t num_bytes) {
  return {reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40), num_bytes};
}

NumaPolicy policy_on(NumaMachine& machine, const char* setting) {
  auto policy = NumaPolicy::create(parse_numa_options(setting).value(), machine.system());
  REQUIRE_MESSAGE(policy.is_ok(), policy.status().to_string());
  return std::move(policy).value();
}

/// What the setting comes to after some memory was placed.
std::string text_on(NumaMachine& machine, const char* setting) {
  NumaPolicy policy = policy_on(machine, setting);
  policy.place(memory_of(4 * kMiB));
  return policy.text();
}

TEST_CASE("the setting is a word or a list of nodes") {
  CHECK(parse_numa_options("auto").value().mode == NumaMode::kAuto);
  CHECK(parse_numa_options("off").value().mode == NumaMode::kOff);
  CHECK(parse_numa_options("interleave").value().mode == NumaMode::kInterleave);
  CHECK(parse_numa_options("0-1,3").value().nodes == NumaNodes{0, 1, 3});
  for (const char* text : {"", "on", "Auto", "0-", "all"}) {
    const auto parsed = parse_numa_options(text);
    REQUIRE_FALSE(parsed.is_ok());
    CHECK(parsed.status().code() == StatusCode::kConfig);
    CHECK(parsed.status().message().find("interleave or nodes") != std::string::npos);
  }
}

TEST_CASE("F9: on a machine with one node, or one that may be used, the kernel is not asked") {
  NumaMachine machine;
  CHECK(text_on(machine, "auto") == "unknown nodes");
  CHECK(text_on(machine, "interleave") == "unknown nodes");
  machine.add_nodes("0");
  for (const char* setting : {"auto", "interleave", "0"}) {
    CHECK(text_on(machine, setting) == "one node");
  }
  machine.add_nodes("0-1");
  machine.allow("1");
  for (const char* setting : {"auto", "interleave", "1"}) {
    CHECK(text_on(machine, setting) == "one node");
  }
  CHECK(machine.calls.empty());
}

TEST_CASE("F9: over several nodes memory is spread, before it is touched and not by force") {
  NumaMachine machine;
  machine.add_nodes("0-3");
  machine.allow("1-3");
  for (const char* setting : {"auto", "interleave"}) {
    CHECK(text_on(machine, setting) == "interleave 1-3");
    const NumaMachine::Call& call = machine.calls.back();
    CHECK(call.memory == memory_of(1).data());
    CHECK(call.num_bytes == 4 * kMiB);
    CHECK(call.mode == NumaMachine::kInterleave);
    CHECK(call.mask == 0b1110);
    CHECK(call.flags == 0);
  }
  CHECK(machine.calls.size() == 2);
  CHECK(text_on(machine, "off") == "off");
  CHECK(machine.calls.size() == 2);
}

TEST_CASE("F9: nodes that are asked for are used, one preferred, several in turn") {
  NumaMachine machine;
  machine.add_nodes("0-3");
  CHECK(text_on(machine, "2") == "prefer 2");
  CHECK(machine.calls.back().mode == NumaMachine::kPreferred);
  CHECK(machine.calls.back().mask == 0b0100);
  CHECK(text_on(machine, "0,3") == "interleave 0,3");
  CHECK(machine.calls.back().mode == NumaMachine::kInterleave);
  CHECK(machine.calls.back().mask == 0b1001);
}

TEST_CASE("F9: nodes that cannot be used are refused with those that can") {
  NumaMachine machine;
  machine.add_nodes("0-3");
  machine.allow("0-1");
  for (const char* setting : {"2", "0-2", "7"}) {
    const auto refused =
        NumaPolicy::create(parse_numa_options(setting).value(), machine.system()).status();
    CHECK(refused.code() == StatusCode::kConfig);
    CHECK(refused.message().find(std::string("numa=") + setting) != std::string::npos);
    CHECK(refused.message().find("it has nodes 0-1;") != std::string::npos);
  }
  NumaMachine silent;
  const auto refused =
      NumaPolicy::create(parse_numa_options("0").value(), silent.system()).status();
  CHECK(refused.code() == StatusCode::kConfig);
  CHECK(refused.message().find("it has no node") != std::string::npos);
}

TEST_CASE("memory without CPUs is used only by name") {
  NumaMachine machine;
  machine.add_nodes("0-2");
  machine.write("sys/devices/system/node/has_cpu", "0-1");
  CHECK(text_on(machine, "auto") == "interleave 0-1");
  CHECK(text_on(machine, "interleave") == "interleave 0-1");
  CHECK(text_on(machine, "2") == "prefer 2");
  machine.write("sys/devices/system/node/has_cpu", "0");
  CHECK(text_on(machine, "auto") == "one node");
}

TEST_CASE("auto leaves a process alone that has a policy of its own") {
  NumaMachine machine;
  machine.add_nodes("0-1");
  machine.process_mode = 2;  // As numactl --membind sets it.
  CHECK(text_on(machine, "auto") == "process policy");
  CHECK(machine.calls.empty());
  CHECK(text_on(machine, "interleave") == "interleave 0-1");
}

TEST_CASE("F9: where mbind is refused memory stays where it is, and the reason is kept") {
  for (const int refusal : {EPERM, ENOSYS}) {
    NumaMachine machine;
    machine.add_nodes("0-1");
    machine.refusal = refusal;
    NumaPolicy policy = policy_on(machine, "auto");
    CHECK(policy.refusal().empty());
    policy.place(memory_of(kMiB));
    policy.place(memory_of(2 * kMiB));
    CHECK(machine.calls.size() == 1);
    const std::string reason = std::string("mbind: ") + std::strerror(refusal) +
                               " (errno=" + std::to_string(refusal) + ")";
    CHECK(policy.refusal() == reason);
    CHECK(policy.text() == "refused: " + reason);
    machine.add_gpu("0");
    const std::array memories = {memory_of(kMiB)};
    CHECK_FALSE(policy.place_near(NumaMachine::kGpu, memories));
    CHECK(machine.calls.size() == 1);
  }
}

TEST_CASE("F9: the node of the first GPU is preferred when it holds all memory with ease") {
  NumaMachine machine;
  machine.add_nodes("0-1", 8 * kGiB);
  machine.add_gpu("1");
  const std::array fitting = {memory_of(5 * kGiB), memory_of(kGiB), memory_of(0)};
  NumaPolicy policy = policy_on(machine, "auto");
  policy.place(fitting[0]);
  CHECK_FALSE(policy.place_near("", fitting));
  CHECK(policy.text() == "interleave 0-1");
  machine.calls.clear();
  CHECK(policy.place_near(NumaMachine::kGpu, fitting));
  CHECK(policy.text() == "prefer 1");
  REQUIRE(machine.calls.size() == 2);
  CHECK(machine.calls[1].num_bytes == kGiB);
  CHECK(machine.calls[1].mode == NumaMachine::kPreferred);
  CHECK(machine.calls[1].mask == 0b10);
  // The second GPU changes nothing.
  machine.write("sys/bus/pci/devices/0000:5e:00.0/numa_node", "0");
  CHECK_FALSE(policy.place_near("0000:5e:00.0", fitting));
  CHECK(policy.text() == "prefer 1");
}

TEST_CASE("F9: the node of a GPU is not preferred when it is small, unknown or not asked for") {
  const std::array large = {memory_of(6 * kGiB), memory_of(kMiB)};
  const std::array small = {memory_of(kMiB)};
  const auto is_near = [](const char* setting, const char* node, auto memories) {
    NumaMachine machine;
    machine.add_nodes("0-2", 8 * kGiB);
    machine.allow("0-1");
    machine.add_gpu(node);
    NumaPolicy policy = policy_on(machine, setting);
    policy.place(memories[0]);
    const std::string before = policy.text();
    const bool is_placed = policy.place_near(NumaMachine::kGpu, memories);
    CHECK((policy.text() != before) == is_placed);
    return is_placed;
  };
  CHECK(is_near("auto", "1", small));
  {
    // A node of memory alone: it may be the GPU's own.
    NumaMachine machine;
    machine.add_nodes("0-2", 8 * kGiB);
    machine.write("sys/devices/system/node/has_cpu", "0-1");
    machine.add_gpu("2");
    NumaPolicy policy = policy_on(machine, "auto");
    policy.place(small[0]);
    CHECK_FALSE(policy.place_near(NumaMachine::kGpu, small));
    CHECK(policy.text() == "interleave 0-1");
  }
  CHECK_FALSE(is_near("auto", "1", large));
  CHECK_FALSE(is_near("auto", "-1", small));
  CHECK_FALSE(is_near("auto", "2", small));
  CHECK_FALSE(is_near("interleave", "1", small));
  CHECK_FALSE(is_near("0", "1", small));
  CHECK_FALSE(is_near("off", "1", small));
}

TEST_CASE("F9: a refusal beside a GPU leaves memory spread") {
  NumaMachine machine;
  machine.add_nodes("0-1");
  machine.add_gpu("1");
  NumaPolicy policy = policy_on(machine, "auto");
  policy.place(memory_of(kMiB));
  machine.refusal = EPERM;
  const std::array memories = {memory_of(kMiB)};
  CHECK_FALSE(policy.place_near(NumaMachine::kGpu, memories));
  CHECK(policy.text() == "interleave 0-1");
  CHECK(policy.refusal().find("errno=1") != std::string::npos);
}

/// The policy of the mapping at `address`, as the kernel has it; -1: it does not say.
int kernel_mode_at(const std::byte* address) {
  constexpr unsigned long kOfAddress = 2;
  int mode = 0;
  const long answer = ::syscall(SYS_get_mempolicy, &mode, nullptr, 0ul, address, kOfAddress);
  return answer == 0 ? mode : -1;
}

TEST_CASE("F9: this kernel takes the calls for arenas of both kinds, up to the last page") {
  // Of two invented nodes it knows the first at least, and leaves out what it does not know.
  NumaMachine machine;
  machine.add_nodes("0-1");
  for (const ArenaKind kind : {ArenaKind::kPrivate, ArenaKind::kShared}) {
    auto arena = Arena::create(6 * kMiB, kind);
    REQUIRE(arena.is_ok());
    const auto memory = arena.value()->bytes(0, arena.value()->num_bytes());
    NumaSystem system = real_numa_system();
    system.root = machine.root();
    auto policy = NumaPolicy::create(parse_numa_options("interleave").value(), system);
    REQUIRE(policy.is_ok());
    CHECK(kernel_mode_at(memory.data()) <= 0);
    policy.value().place(memory);
    if (!policy.value().refusal().empty()) {
      MESSAGE("skipped: refused here: " << policy.value().refusal());
      return;
    }
    CHECK(policy.value().text() == "interleave 0-1");
    CHECK(kernel_mode_at(memory.data()) == NumaMachine::kInterleave);
    CHECK(kernel_mode_at(&memory.back()) == NumaMachine::kInterleave);
    std::memset(memory.data(), 0x5a, memory.size());
    CHECK(memory.back() == std::byte{0x5a});
  }
}

TEST_CASE("a probe says what auto comes to") {
  NumaMachine machine;
  machine.add_nodes("0");
  CHECK(probe_numa(machine.system()).text == "one node");
  machine.add_nodes("0-1");
  const NumaProbe probe = probe_numa(machine.system());
  CHECK(probe.nodes == NumaNodes{0, 1});
  CHECK(probe.text == "interleave 0-1");
  CHECK(probe.refusal.empty());
  machine.refusal = EPERM;
  CHECK(probe_numa(machine.system()).refusal.find("errno=1") != std::string::npos);
}

}  // namespace
}  // namespace kvtier::testing
