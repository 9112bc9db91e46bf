// Replays a trace through the store's policies alone: no bytes, no tiers. One thread.
#pragma once

#include <cstdint>
#include <span>

namespace kvtier::store {

enum class SimulatedPolicy : std::uint8_t { kLru, kS3Fifo, kSecondUse, kAdaptive };

/// Requests, one after the other: the blocks of request i are block_ids[ends[i - 1], ends[i]).
/// Equal ids mean an equal block and an equal chain above it.
struct SimulatedTrace {
  std::span<const std::uint64_t> block_ids;
  std::span<const std::uint64_t> request_ends;  // Rising; the last is block_ids' length.
};

struct SimulationResult {
  std::uint64_t num_hits = 0;    // Blocks of unbroken prefixes that were there.
  std::uint64_t num_writes = 0;  // Blocks that were let in.
};

/// Requires capacity_blocks >= 1.
SimulationResult simulate_policy(const SimulatedTrace& trace, SimulatedPolicy policy,
                                 std::uint64_t capacity_blocks);
/// Hits of Belady's rule with bypass, which knows the future: the most that any policy can reach,
/// but for ties.
std::uint64_t count_optimal_hits(const SimulatedTrace& trace, std::uint64_t capacity_blocks);

}  // namespace kvtier::store
