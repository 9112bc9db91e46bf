// NumaPolicy: on which NUMA nodes a store's host memory lies, and the calls that have the kernel
// put it there. Not thread-safe: the store guards it; the free functions are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "memory/numa_nodes.h"

namespace kvtier {

enum class NumaMode : std::uint8_t { kAuto, kOff, kInterleave, kNodes };

struct NumaOptions {
  NumaMode mode = NumaMode::kAuto;
  NumaNodes nodes;  // Of kNodes; at least one.
};

/// Of "auto", "off", "interleave" or a list of nodes. kConfig: it is none of them.
Result<NumaOptions> parse_numa_options(std::string_view text);

/// Where nodes are read and policies set, replaceable so that tests can bring other machines and
/// refuse.
struct NumaSystem {
  /// As mbind(2): -1 and errno on failure.
  std::function<long(void* memory, unsigned long num_bytes, int mode, const unsigned long* mask,
                     unsigned long mask_bits, unsigned flags)>
      mbind;
  /// As get_mempolicy(2) for the policy of the calling thread.
  std::function<long(int* mode)> get_mempolicy;
  /// Put before every path that is read.
  std::string root;
};

NumaSystem real_numa_system();

class NumaPolicy {
 public:
  /// Reads the machine. kConfig: nodes that are not there or that the process may not use, with
  /// those that it may.
  static Result<NumaPolicy> create(const NumaOptions& options, NumaSystem system);

  /// Says where pages of `memory` that are not taken yet shall come from; those taken stay. Starts
  /// on a page. A refusal is no failure: the kernel then puts them where it likes; see refusal().
  void place(std::span<std::byte> memory);
  /// At the first call, with mode auto over several nodes: prefers the node next to the PCI device,
  /// if that has CPUs (else it may be the GPU's own memory) and all memories together take no more
  /// than kNearShare of it. Whether it does so now.
  bool place_near(const std::string& pci_address, std::span<const std::span<std::byte>> memories);

  /// Whether place_near() may still choose another node: what is taken before stays where it is.
  bool is_near_pending() const { return is_near_allowed_; }

  const std::vector<NumaNode>& usable() const { return usable_; }
  /// What is in effect: "off", "one node", "unknown nodes", "process policy" (it has one of its
  /// own, which auto leaves alone), "prefer 0", "interleave 0-1" or "refused: " and refusal().
  std::string text() const;
  /// The call that was refused and why; empty: none was.
  const std::string& refusal() const { return refusal_; }

 private:
  static constexpr double kNearShare = 0.75;

  explicit NumaPolicy(NumaSystem system) : system_(std::move(system)) {}
  void choose(const NumaOptions& options);
  /// The policy for memory on `nodes`; whether the kernel took it.
  bool bind(std::span<std::byte> memory, const NumaNodes& nodes);

  NumaSystem system_;
  std::vector<NumaNode> usable_;
  NumaNodes nodes_;       // Where memory is put; empty: wherever the kernel likes.
  std::string off_text_;  // Why nodes_ is empty.
  std::string refusal_;
  bool is_placed_ = false;
  bool is_near_allowed_ = false;  // Until the first device was seen.
};

/// What auto comes to on a machine, tried with a page of its own.
struct NumaProbe {
  NumaNodes nodes;   // That the process may use.
  std::string text;  // NumaPolicy::text().
  std::string refusal;
};
NumaProbe probe_numa(NumaSystem system);

}  // namespace kvtier
