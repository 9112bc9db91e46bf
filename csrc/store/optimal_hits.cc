// Belady's rule with bypass over a trace. One thread.
#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "store/policy_simulation.h"

namespace kvtier::store {
namespace {

/// For each block of the trace the request that uses it next; the number of requests: none does.
std::vector<std::uint64_t> find_next_uses(const SimulatedTrace& trace) {
  std::vector<std::uint64_t> next_uses(trace.block_ids.size());
  std::unordered_map<std::uint64_t, std::uint64_t> next_of_block;
  const std::size_t num_requests = trace.request_ends.size();
  for (std::size_t request = num_requests; request-- > 0;) {
    const std::uint64_t begin = request == 0 ? 0 : trace.request_ends[request - 1];
    for (std::uint64_t i = begin; i < trace.request_ends[request]; ++i) {
      const auto found = next_of_block.find(trace.block_ids[i]);
      next_uses[i] = found == next_of_block.end() ? num_requests : found->second;
    }
    for (std::uint64_t i = begin; i < trace.request_ends[request]; ++i) {
      next_of_block[trace.block_ids[i]] = request;
    }
  }
  return next_uses;
}

}  // namespace

std::uint64_t count_optimal_hits(const SimulatedTrace& trace, std::uint64_t capacity_blocks) {
  KVTIER_CHECK(capacity_blocks >= 1);
  const std::vector<std::uint64_t> next_uses = find_next_uses(trace);
  const std::size_t num_requests = trace.request_ends.size();
  std::unordered_map<std::uint64_t, std::uint64_t> kept;  // Block -> its next use.
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_next_use;
  std::uint64_t num_hits = 0, begin = 0;
  for (const std::uint64_t end : trace.request_ends) {
    std::uint64_t i = begin;
    for (; i < end && kept.contains(trace.block_ids[i]); ++i) ++num_hits;
    // A block is used no later than its descendants are: so the last to go are whole prefixes.
    for (i = begin; i < end; ++i) {
      const std::uint64_t block = trace.block_ids[i];
      if (const auto found = kept.find(block); found != kept.end()) {
        by_next_use.erase({found->second, block});
        kept.erase(found);
      }
      if (next_uses[i] == num_requests) continue;
      if (kept.size() >= capacity_blocks) {
        const auto last = std::prev(by_next_use.end());
        if (last->first <= next_uses[i]) continue;
        kept.erase(last->second);
        by_next_use.erase(last);
      }
      kept.emplace(block, next_uses[i]);
      by_next_use.emplace(next_uses[i], block);
    }
    begin = end;
  }
  return num_hits;
}

}  // namespace kvtier::store
