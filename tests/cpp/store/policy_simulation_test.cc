// The simulation of policies on loads whose best answer is known.
#include "store/policy_simulation.h"

#include <doctest/doctest.h>

#include <vector>

#include "base/random.h"

using namespace kvtier;
using namespace kvtier::store;

namespace {

struct Load {
  void add(std::uint64_t first_id, std::size_t num_blocks) {
    for (std::size_t i = 0; i < num_blocks; ++i) block_ids.push_back(first_id + i);
    request_ends.push_back(block_ids.size());
  }
  SimulatedTrace trace() const { return {block_ids, request_ends}; }
  std::uint64_t hits(SimulatedPolicy policy, std::uint64_t capacity_blocks) const {
    return simulate_policy(trace(), policy, capacity_blocks).num_hits;
  }
  std::vector<std::uint64_t> block_ids, request_ends;
};

constexpr SimulatedPolicy kAll[] = {SimulatedPolicy::kLru, SimulatedPolicy::kS3Fifo,
                                    SimulatedPolicy::kSecondUse, SimulatedPolicy::kAdaptive};

}  // namespace

TEST_CASE("with room for all of it every policy and the optimum hit all that was there before") {
  Load load;
  for (int round = 0; round < 3; ++round) {
    for (std::uint64_t chain = 0; chain < 10; ++chain) load.add(chain * 100, 5);
  }
  for (const SimulatedPolicy policy : kAll) CHECK(load.hits(policy, 50) == 100);
  CHECK(count_optimal_hits(load.trace(), 50) == 100);
}

TEST_CASE("only unbroken prefixes are hits") {
  Load load;
  load.add(1, 3);
  load.block_ids.insert(load.block_ids.end(), {99, 2, 3});
  load.request_ends.push_back(6);
  CHECK(load.hits(SimulatedPolicy::kLru, 100) == 0);
  CHECK(count_optimal_hits(load.trace(), 100) == 0);
}

TEST_CASE("a loop that does not fit: the adaptive policy keeps a part of it, LRU nothing") {
  Load load;
  for (int round = 0; round < 40; ++round) {
    for (std::uint64_t id = 0; id < 3000; ++id) load.add(id, 1);
  }
  CHECK(load.hits(SimulatedPolicy::kLru, 1000) == 0);
  const std::uint64_t optimal = count_optimal_hits(load.trace(), 1000);
  CHECK(load.hits(SimulatedPolicy::kAdaptive, 1000) > optimal * 8 / 10);
}

TEST_CASE("prompts that never come back do not push out what does") {
  Random random(3);
  Load load;
  std::uint64_t one_shot = 1'000'000;
  for (int request = 0; request < 40'000; ++request) {
    if (random.below(10) == 0) {
      load.add(random.below(400), 1);
    } else {
      load.add(one_shot++, 1);
    }
  }
  const auto adaptive = simulate_policy(load.trace(), SimulatedPolicy::kAdaptive, 500);
  const std::uint64_t optimal = count_optimal_hits(load.trace(), 500);
  CHECK(adaptive.num_hits > optimal * 8 / 10);
  CHECK(adaptive.num_writes < load.block_ids.size() / 20);
  CHECK(load.hits(SimulatedPolicy::kLru, 500) < optimal / 2);
}

TEST_CASE("no policy beats the optimum, and each run repeats") {
  Random random(11);
  Load load;
  for (int request = 0; request < 3000; ++request) {
    load.add(random.below(60) * 100, 1 + random.below(12));
  }
  for (const std::uint64_t capacity : {1, 20, 100, 300}) {
    const std::uint64_t optimal = count_optimal_hits(load.trace(), capacity);
    for (const SimulatedPolicy policy : kAll) {
      const std::uint64_t hits = load.hits(policy, capacity);
      CHECK(hits <= optimal);
      CHECK(hits == load.hits(policy, capacity));
    }
  }
}
