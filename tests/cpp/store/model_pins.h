// ModelPins: which blocks of a store are pinned how often, by a model of it. Not thread-safe.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "store_world.h"

namespace kvtier::testing {

class ModelPins {
 public:
  explicit ModelPins(StoreWorld& world) : world_(world) {}

  /// `space_index`: the model's own number of the namespace; the blocks are a chain.
  void pin(std::uint32_t space, std::size_t space_index, std::uint64_t first,
           std::size_t num_blocks) {
    auto pinned = world_.store->pin(space, keys_of(first, num_blocks));
    REQUIRE_MESSAGE(pinned.is_ok(), pinned.status().to_string());
    REQUIRE(pinned.value() <= num_blocks);
    for (std::uint64_t depth = 0; depth < pinned.value(); ++depth) {
      ++num_pins_[{space_index, first + depth}];
    }
  }

  void unpin(std::uint32_t space, std::size_t space_index, std::uint64_t first,
             std::size_t num_blocks, bool has_faults) {
    std::uint64_t num_expected = 0;
    for (std::uint64_t depth = 0; depth < num_blocks; ++depth) {
      const auto found = num_pins_.find({space_index, first + depth});
      if (found == num_pins_.end()) continue;
      ++num_expected;
      if (--found->second == 0) num_pins_.erase(found);
    }
    auto unpinned = world_.store->unpin(space, keys_of(first, num_blocks));
    REQUIRE_MESSAGE(unpinned.is_ok(), unpinned.status().to_string());
    // A block that could not be read is gone, and its pins with it.
    REQUIRE(unpinned.value() <= num_expected);
    if (!has_faults) REQUIRE(unpinned.value() == num_expected);
  }

  /// What is pinned is there.
  void check(const std::vector<std::uint32_t>& spaces) {
    for (const auto& [block, num_pins] : num_pins_) {
      CAPTURE(block.first);
      CAPTURE(block.second);
      REQUIRE(is_there(spaces, block));
    }
  }

  /// A delete ends the pins of what it removed.
  void forget_gone(const std::vector<std::uint32_t>& spaces) {
    std::erase_if(num_pins_, [&](const auto& pin) { return !is_there(spaces, pin.first); });
  }

  /// Takes every pin from these blocks, known or not.
  void end(std::uint32_t space, std::uint64_t first, std::size_t num_blocks) {
    const auto keys = keys_of(first, num_blocks);
    while (world_.store->unpin(space, keys).value() > 0) continue;
  }

  void forget() { num_pins_.clear(); }

 private:
  bool is_there(const std::vector<std::uint32_t>& spaces,
                const std::pair<std::size_t, std::uint64_t>& block) {
    const std::vector<BlockKey> keys = {key_of(block.second)};
    return world_.store->lookup(spaces[block.first], keys, true).value().num_blocks > 0;
  }

  StoreWorld& world_;
  std::map<std::pair<std::size_t, std::uint64_t>, std::uint64_t> num_pins_;  // Per block.
};

}  // namespace kvtier::testing
