// RankDouble: a process that carries plans out, with its own parts of blocks in its own memory. One
// thread.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <vector>

#include "base/checksum.h"
#include "paged/move_plan.h"

namespace kvtier::testing {

class RankDouble {
 public:
  /// part_bytes: of all parts of a block. memory: the store's arenas, as the store has them mapped.
  RankDouble(std::uint32_t rank, std::vector<std::uint64_t> part_bytes, paged::PartRange parts,
             std::vector<std::span<std::byte>> memory)
      : rank_(rank), part_bytes_(std::move(part_bytes)), parts_(parts), memory_(memory) {}

  /// Its parts of the block at a position in the keys.
  std::map<std::size_t, std::vector<std::byte>> blocks;

  std::uint64_t own_bytes() const {
    const auto begin = part_bytes_.begin() + static_cast<std::ptrdiff_t>(parts_.first);
    return std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(parts_.num_parts),
                           std::uint64_t{0});
  }
  std::uint64_t offset_bytes() const {
    return std::accumulate(part_bytes_.begin(),
                           part_bytes_.begin() + static_cast<std::ptrdiff_t>(parts_.first),
                           std::uint64_t{0});
  }

  /// Takes its parts of a whole block.
  void hold(std::size_t index, std::span<const std::byte> block) {
    const auto own = block.subspan(offset_bytes(), own_bytes());
    blocks[index].assign(own.begin(), own.end());
  }
  bool holds(std::size_t index, std::span<const std::byte> block) const {
    const auto own = block.subspan(offset_bytes(), own_bytes());
    const auto found = blocks.find(index);
    return found != blocks.end() && std::equal(own.begin(), own.end(), found->second.begin());
  }

  paged::RankResult carry_out(const paged::MovePlan& plan) {
    paged::RankResult result = answer(plan);
    const bool is_load = plan.direction == transfer::TransferDirection::kLoad;
    for (std::size_t k = 0; k < plan.block_indices.size(); ++k) {
      const std::size_t index = plan.block_indices[k];
      std::vector<std::byte>& block = blocks[index];
      block.resize(own_bytes());
      const std::span<std::byte> slot = slot_of(plan.slot_offsets[k]);
      if (is_load) {
        std::copy(slot.begin(), slot.end(), block.begin());
      } else {
        std::copy(block.begin(), block.end(), slot.begin());
      }
      if (plan.keys.empty()) continue;
      ChecksumSeed seed{plan.keys[k], plan.namespace_id, 0};
      std::span<const std::byte> rest = block;
      bool is_right = true;
      for (std::size_t part = parts_.first; part < parts_.first + parts_.num_parts; ++part) {
        seed.part_index = static_cast<std::uint32_t>(part);
        const std::uint64_t sum = checksum_part(rest.first(part_bytes_[part]), seed);
        rest = rest.subspan(part_bytes_[part]);
        if (!is_load) result.checksums.push_back(sum);
        if (is_load) is_right = is_right && sum == plan.checksums[k * part_bytes_.size() + part];
      }
      if (is_right) continue;
      result.undefined_indices.push_back(index);
      result.status = Status(StatusCode::kCorrupt, "not what was saved");
    }
    return result;
  }
  paged::RankResult fail(const paged::MovePlan& plan) {
    paged::RankResult result = answer(plan);
    result.status = Status(StatusCode::kIoError, "device is lost");
    return result;
  }

 private:
  paged::RankResult answer(const paged::MovePlan& plan) const {
    paged::RankResult result;
    result.plan_id = plan.plan_id;
    result.arena_id = plan.arena_id;
    result.rank = rank_;
    result.parts = parts_;
    return result;
  }
  std::span<std::byte> slot_of(std::uint64_t slot_offset_bytes) const {
    for (const std::span<std::byte> range : memory_) {
      if (slot_offset_bytes < range.size()) {
        return range.subspan(slot_offset_bytes + offset_bytes(), own_bytes());
      }
      slot_offset_bytes -= range.size();
    }
    REQUIRE_MESSAGE(false, "a slot outside the arena");
    return {};
  }

  const std::uint32_t rank_;
  const std::vector<std::uint64_t> part_bytes_;
  const paged::PartRange parts_;
  const std::vector<std::span<std::byte>> memory_;
};

}  // namespace kvtier::testing
